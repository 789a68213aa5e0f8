"""Processes that wait for each other end where one fails or is left alone: else GPU tests would keep GPUs."""

import multiprocessing
import signal
import subprocess
import sys

import pytest

from tests.ending_ranks import wait_for_all

RANK = """
import signal
from tests.ending_ranks import end_with_parent
end_with_parent()
print("ready", flush=True)
signal.pause()
"""
STARTS_A_RANK = f"""
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {RANK!r}])
signal.pause()
"""


@pytest.mark.parametrize(("code", "failing_first"), [(3, True), (3, False), (-signal.SIGTERM, False)])
def test_one_that_fails_ends_the_others(code: int, failing_first: bool) -> None:
    spawn = multiprocessing.get_context("spawn")
    failing = (
        spawn.Process(target=sys.exit, args=(code,))
        if code > 0
        else spawn.Process(target=signal.raise_signal, args=(-code,))
    )
    waiting = spawn.Process(target=signal.pause)
    processes = [failing, waiting] if failing_first else [waiting, failing]
    for process in processes:
        process.start()
    assert wait_for_all(processes) == abs(code)
    assert [failing.exitcode, waiting.exitcode] == [code, -signal.SIGKILL]


def test_all_that_end_well_are_waited_for() -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=sys.exit, args=(0,)) for _ in range(2)]
    for process in processes:
        process.start()
    assert wait_for_all(processes) == 0
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_rank_ends_with_who_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS_A_RANK], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        # The rank holds the other end, too.
        assert parent.stdout.read() == b""
