"""A worker of two ranks under the real scheduler: the ids of one, also when a rank is killed mid-stream."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stepwire_client import StepwireClient

from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tests.e2e.greedy_streams import ids_of_one_rank, quiet_port, start_streams, tokens_of
from tools.services import Service, running

NUM_RANKS = 2
# On a machine that has much else to do, a rank that waits for a core is not lost.
PATIENCE = ("--silence-limit-seconds", "100")


def kill_rank(worker: Service, rank: int, *, attempt: int) -> None:
    """Kill a rank of the group that runs for the so-many-th time."""
    line = worker.wait_for(f"attempt {attempt} rank {rank} pid ")
    (pid,) = re.findall(r"pid (\d+)", line)
    os.kill(int(pid), signal.SIGKILL)


@pytest.mark.timeout(300)
def test_two_ranks_give_the_ids_of_one_also_when_a_rank_is_killed(model_folder: Path) -> None:
    expected = ids_of_one_rank(model_folder)
    common = ("--model", str(model_folder), "--port")
    launcher = ("tests.rank_launcher", str(NUM_RANKS))
    with (
        running(*launcher, *common, str(quiet_port()), *WORKER_FLAGS, *PATIENCE) as worker,
        running(
            "scheduler_svc", *common, "0", "--worker", worker.address(), "--check-invariants"
        ) as scheduler,
        StepwireClient(scheduler.address()) as client,
    ):
        scheduler.wait_for(f"worker {worker.address()} serves")
        assert tokens_of(start_streams(client)) == expected
        for attempt, rank in enumerate((1, 0)):
            streams = start_streams(client)
            kill_rank(worker, rank, attempt=attempt)
            assert tokens_of(streams) == expected
            # Nobody else ended the other rank: it noticed.
            codes = {rank: -signal.SIGKILL.value, 1 - rank: 3}
            worker.wait_for(f"attempt {attempt} ended: {dict(sorted(codes.items()))}")
        (state,) = client.server_state().workers
        assert state.is_serving
        assert state.num_epochs_lost >= 2
        wait_until_idle(client)
        scheduler.stop()
        assert worker.stop() == 0
    assert "attempt 2 ended: {0: 0, 1: 0}\n" in worker.lines


def test_ranks_whose_launcher_and_reader_are_gone_end(model_folder: Path) -> None:
    flags = ("--model", str(model_folder), "--port", "0", *WORKER_FLAGS, *PATIENCE)
    command = (sys.executable, "-m", "tests.rank_launcher", str(NUM_RANKS), *flags)
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert launcher.stdout is not None
    pids = []
    for line in launcher.stdout:
        pids += re.findall(r"attempt 0 rank \d pid (\d+)", line)
        if "listening on" in line:
            break
    ranks = [os.pidfd_open(int(pid)) for pid in pids]
    # What they would say has nowhere to go: as when stepwire serve, which reads it, is killed.
    launcher.stdout.close()
    launcher.kill()
    launcher.wait()
    have_ended = [bool(select.select([rank], [], [], 10)[0]) for rank in ranks]
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)
    assert have_ended == [True, True]
