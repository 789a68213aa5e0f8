"""The scheduler's processes: they start and end together, and what crashes is started again."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.supervisor import supervise
from tools.services import Service

LIMIT_SECONDS = 30.0
# No worker ever comes: the service starts and lives without one.
NO_WORKER = ("--worker", "127.0.0.1:1", "--log-level", "info")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="session")
def model_folder(checkpoint_folder: Callable[[str], Path]) -> Path:
    """Return a model folder for the front ends to read."""
    return checkpoint_folder("qwen3_tiny")


@contextmanager
def scheduler(model_folder: Path, *flags: str) -> Iterator[Service]:
    """Start a scheduler and wait until it listens; whatever is left of it is killed at the end."""
    service = Service.start("scheduler_svc", "--model", str(model_folder), *NO_WORKER, *flags)
    try:
        service.address()
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()


def processes(service: Service, name: str = "") -> list[int]:
    """List the process ids of the service's children whose command line shows ``name``."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if name in Path(f"/proc/{child}/cmdline").read_text()]


def spawned(service: Service) -> list[int]:
    """List the engine's process id, then those of the front ends: in the order of their start."""
    return processes(service, "spawn_main")


def wait_gone(pids: list[int]) -> None:
    """Wait until no process of ``pids`` runs."""
    deadline = time.monotonic() + LIMIT_SECONDS
    for pid in pids:
        while is_running(pid):
            assert time.monotonic() < deadline, f"process {pid} still runs"
            time.sleep(0.02)


def wait_for_lines(service: Service, text: str, count: int) -> None:
    """Wait until ``count`` lines contain ``text``."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while sum(text in line for line in list(service.lines)) < count:
        assert time.monotonic() < deadline, "".join(service.lines)
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that waits to be buried by whoever adopted it does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_front_ends_share_one_port_and_one_that_dies_is_started_again(model_folder: Path) -> None:
    with scheduler(model_folder, "--port", "0", "--frontends", "2") as service:
        address = service.address()
        for index in (0, 1):
            service.wait_for(f"front end {index} attached", LIMIT_SECONDS)
        second = Service.start("scheduler_svc", "--model", str(model_folder), "--port", address.split(":")[1])
        assert second.process.wait(LIMIT_SECONDS) == 2
        line = second.wait_for("scheduler error: ", LIMIT_SECONDS)
        assert f"--port is '{address}', but must be an address that can be listened on" in line
        pids = spawned(service)
        assert len(pids) == 3
        os.kill(pids[2], signal.SIGKILL)
        service.wait_for("front end 1 ended: exit code -9, see its log above; starting it again in 0 s")
        wait_for_lines(service, "front end 1 attached", 2)
        new_pids = spawned(service)
        assert new_pids[:2] == pids[:2]
        assert len(new_pids) == 3
        assert service.stop() == 0
        wait_gone(new_pids)
        assert len([line for line in service.lines if "front end 0 attached" in line]) == 1


def test_an_engine_that_dies_is_started_again_and_front_ends_attach_again(model_folder: Path) -> None:
    with scheduler(model_folder, "--port", "0") as service:
        service.wait_for("front end 0 attached", LIMIT_SECONDS)
        pids = spawned(service)
        os.kill(pids[0], signal.SIGKILL)
        service.wait_for("engine ended: exit code -9, see its log above; starting it again in 0 s")
        wait_for_lines(service, "front end 0 attached", 2)
        new_pids = spawned(service)
        assert new_pids[0] == pids[1]
        assert len(new_pids) == 2
        assert service.stop() == 0
        wait_gone(new_pids)


def test_ctrl_c_ends_all_in_order_and_leaves_nothing(model_folder: Path) -> None:
    with scheduler(model_folder, "--port", "0") as service:
        pids = spawned(service)
        for pid in [*pids, service.process.pid]:
            os.kill(pid, signal.SIGINT)
        assert service.process.wait(LIMIT_SECONDS) == 0
        wait_gone(pids)
        assert "Traceback" not in "".join(service.lines)


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have temporary folders made in one of our own, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_when_the_supervisor_is_killed_nothing_is_left_running_or_in_memory(
    model_folder: Path, short_folder: Path
) -> None:
    with scheduler(model_folder, "--port", "0", "--metrics-port", "0") as service:
        pids = spawned(service)
        mapped = [line.split()[-1] for line in Path(f"/proc/{pids[0]}/maps").read_text().splitlines()]
        (board,) = {Path(path) for path in mapped if "/stepwire-" in path and path.endswith("/engine")}
        assert board.is_file()
        (socket,) = short_folder.glob("stepwire-*/engine.sock")
        service.kill()
        wait_gone(pids)
        assert not board.parent.exists()
        assert not socket.parent.exists()


def test_signals_are_taken_before_there_are_folders_to_leave_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers = []

    @contextmanager
    def no_folder(**_: object) -> Iterator[str]:
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise ConfigError("seen enough")
        yield ""

    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_folder)
    with pytest.raises(ConfigError, match="seen enough"):
        supervise(SchedulerConfig(model="m", port=0), print)
    assert handlers != [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
