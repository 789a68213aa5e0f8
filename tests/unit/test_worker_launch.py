"""How the start of a worker group's ranks ends when they do."""

import os
import signal

import pytest
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from worker_svc.launch.__main__ import launch


@pytest.mark.parametrize(("exit_code", "expected"), [(3, 3), (-signal.SIGKILL, 1)])
def test_a_rank_that_failed_gives_its_exit_code_and_no_traceback(
    exit_code: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = ProcessFailure(local_rank=1, pid=4242, exitcode=exit_code, error_file="<N/A>")
    _end_torchrun_with(ChildFailedError("worker_svc", {1: failure}), monkeypatch)
    with pytest.raises(SystemExit) as ending:
        launch()
    assert ending.value.code == expected


def test_a_rank_that_only_noticed_another_s_end_does_not_hide_why_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = {
        rank: ProcessFailure(local_rank=rank, pid=4242 + rank, exitcode=exit_code, error_file="<N/A>")
        for rank, exit_code in enumerate((3, 2, 3))
    }
    _end_torchrun_with(ChildFailedError("worker_svc", failures), monkeypatch)
    with pytest.raises(SystemExit) as ending:
        launch()
    assert ending.value.code == 2


def test_a_signal_gives_the_exit_code_of_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    _end_torchrun_with(SignalException("got a signal", signal.SIGTERM), monkeypatch)
    with pytest.raises(SystemExit) as ending:
        launch()
    assert ending.value.code == 143


def test_ranks_are_told_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWIRE_LAUNCHER_PID", "that of a launcher around this one")
    told = list[str]()
    monkeypatch.setattr(run, "main", lambda: told.append(os.environ["STEPWIRE_LAUNCHER_PID"]))
    launch()
    assert told == [str(os.getpid())]


def _end_torchrun_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setenv("STEPWIRE_LAUNCHER_PID", "")  # set back in the end
    monkeypatch.setattr(run, "main", fail)
