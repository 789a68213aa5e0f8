"""Worker groups as users start them, with torchrun and with stepwire serve, through deaths of their ranks."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from stepwire_client import StepwireClient

from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tests.e2e.greedy_streams import ids_of_one_rank, quiet_port, start_streams, tokens_of
from tools.services import Service, running

TORCHRUN = "torch.distributed.run"
LAUNCH = "worker_svc.launch"
"""torchrun, as stepwire serve starts it."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def ranks_of(torchrun: Service, num_ranks: int, limit_seconds: float = 60.0) -> list[int]:
    """Wait until torchrun has so many ranks; return their process ids, by rank."""
    pid, deadline = torchrun.process.pid, time.monotonic() + limit_seconds
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while len(ranks := sorted(int(child) for child in children.read_text().split())) != num_ranks:
        assert time.monotonic() < deadline, f"torchrun has the children {ranks}"
        time.sleep(0.05)
    return ranks


@contextmanager
def scheduler_of(model_folder: Path, worker_address: str) -> Iterator[StepwireClient]:
    """Run a scheduler for a worker; yield a client."""
    flags = ("--model", str(model_folder), "--port", "0", "--worker", worker_address, "--check-invariants")
    with running("scheduler_svc", *flags) as scheduler, StepwireClient(scheduler.address()) as client:
        scheduler.wait_for(f"worker {worker_address} serves on ")
        yield client
        wait_until_idle(client)


@contextmanager
def torchrun_of(*flags: str) -> Iterator[Service]:
    """Run torchrun; in the end its ranks are ended, then it."""
    service = Service.start(TORCHRUN, *flags)
    try:
        yield service
    finally:
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(60)


def test_four_ranks_through_deaths(checkpoint_folder: Callable[[str], Path]) -> None:
    folder = checkpoint_folder("qwen3_tiny")  # 2 KV heads: each is on two ranks
    expected = ids_of_one_rank(folder)
    launch = ("--standalone", "--nproc-per-node", "4", "--max-restarts", "100", "-m", "worker_svc")
    worker_flags = ("--model", str(folder), "--port", str(quiet_port(1)), *WORKER_FLAGS)
    with (
        torchrun_of(*launch, *worker_flags) as torchrun,
        scheduler_of(folder, torchrun.address()) as client,
    ):
        assert tokens_of(start_streams(client)) == expected
        for number, how in enumerate([*[signal.SIGKILL] * 4, signal.SIGSTOP, signal.SIGSTOP]):
            streams = start_streams(client)
            os.kill(ranks_of(torchrun, 4)[number % 4], how)
            assert tokens_of(streams) == expected
        (worker,) = client.server_state().workers
        assert worker.num_epochs_lost >= 6


def wait_for_listener(port: int, limit_seconds: float = 60.0) -> None:
    """Wait until somebody listens on a port of this machine."""
    deadline = time.monotonic() + limit_seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nobody listens on port {port}"
        time.sleep(0.05)


def test_two_hosts(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    expected, port = ids_of_one_rank(model_folder), quiet_port(2)
    meeting = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}")
    launch = (*meeting, "--nproc-per-node", "1", "--max-restarts", "100", "-m", "worker_svc")
    worker_flags = ("--model", str(model_folder), "--port", str(quiet_port(3)), *WORKER_FLAGS)
    with ExitStack() as stack:
        hosts = [stack.enter_context(torchrun_of(*launch, *worker_flags))]
        wait_for_listener(port)
        hosts.append(stack.enter_context(torchrun_of(*launch, *worker_flags)))
        deadline = time.monotonic() + 120
        while not (leading := [host for host in hosts if "listening" in "".join(host.lines)]):
            assert time.monotonic() < deadline, "\n".join("".join(host.lines) for host in hosts)
            time.sleep(0.1)
        with scheduler_of(model_folder, leading[0].address()) as client:
            assert tokens_of(start_streams(client)) == expected
            for host in hosts:
                streams = start_streams(client)
                os.kill(ranks_of(host, 1)[0], signal.SIGKILL)
                assert tokens_of(streams) == expected
            streams = start_streams(client)
            hosts[1].kill()
            stack.enter_context(torchrun_of(*launch, *worker_flags))
            assert tokens_of(streams) == expected


def test_stepwire_serve_starts_a_group_again_that_lost_a_rank(model_folder: Path) -> None:
    expected = ids_of_one_rank(model_folder)
    flags = ("--model", str(model_folder), "--port", "0", "--tensor-parallel-size", "2", "--num-blocks", "64")
    with running("stepwire_cli", "serve", *flags) as serve:
        address = serve.wait_for("Stepwire serves").split()[-1]
        with StepwireClient(address) as client:
            assert tokens_of(start_streams(client)) == expected
            streams = start_streams(client)
            os.kill(_rank_1(serve.process.pid), signal.SIGKILL)
            assert tokens_of(streams) == expected
            wait_until_idle(client)
        serve.wait_for("starting it again (restart 1 of 5 within a minute)")
    assert serve.process.returncode == 0


def test_stepwire_serve_says_shortly_that_ranks_do_not_fit_the_model(model_folder: Path) -> None:
    command = (sys.executable, "-m", "stepwire_cli", "serve", "--model", str(model_folder), "--port", "0")
    ended = subprocess.run(
        (*command, "--tensor-parallel-size", "7"), capture_output=True, text=True, timeout=120, check=False
    )
    lines = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert lines[-1] == "error: the worker ended with exit code 2; all is stopped"
    assert any("error: 7 ranks cannot share this model" in line for line in lines)
    assert "Traceback" not in ended.stderr


def _rank_1(serve_pid: int) -> int:
    """Find the second rank: a child of the child that torchrun is."""
    for child in Path(f"/proc/{serve_pid}/task/{serve_pid}/children").read_text().split():
        if LAUNCH in Path(f"/proc/{child}/cmdline").read_text():
            return sorted(map(int, Path(f"/proc/{child}/task/{child}/children").read_text().split()))[1]
    raise AssertionError("torchrun does not run")
