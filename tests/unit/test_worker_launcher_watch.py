"""A rank does not outlive what started it, be it that the other ranks are still to come."""

import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from worker_svc.errors import StartupError
from worker_svc.tp import join
from worker_svc.tp.group import TpGroup, make_tp_group
from worker_svc.tp.launcher_watch import LauncherWatch

MESSAGE = "the launcher of the worker group has ended"


@pytest.fixture
def launcher() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that stays until its standard input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_launcher_is_the_parent_where_torchrun_is() -> None:
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    group = make_tp_group("cpu", ranks | {"TORCHELASTIC_RUN_ID": "none"}, parent_pid=7)
    assert group.launcher_pid == 7
    assert make_tp_group("cpu", ranks, parent_pid=7).launcher_pid is None


def test_a_launcher_that_tells_its_process_is_known_though_another_is_the_parent_by_now() -> None:
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "STEPWIRE_LAUNCHER_PID": "7"}
    assert make_tp_group("cpu", ranks | {"TORCHELASTIC_RUN_ID": "none"}, parent_pid=1).launcher_pid == 7
    assert make_tp_group("cpu", ranks, parent_pid=1).launcher_pid is None


def test_a_launcher_that_is_killed_is_lost_before_the_ranks_have_met(
    launcher: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: queue.SimpleQueue[object] = queue.SimpleQueue()

    def meet(_: TpGroup) -> None:
        launcher.kill()
        raise StartupError(str(lost.get(timeout=30)))

    monkeypatch.setattr(join, "_open_process_group", meet)
    group = TpGroup(rank=1, size=2, local_rank=1, local_size=2, launcher_pid=launcher.pid)
    with pytest.raises(StartupError, match=MESSAGE):
        join.join_group(group, options="", limit_seconds=60, on_lost=lost.put)


def test_a_launcher_that_is_gone_already_is_lost(launcher: "subprocess.Popen[bytes]") -> None:
    lost: queue.SimpleQueue[object] = queue.SimpleQueue()
    launcher.kill()
    launcher.wait(30)
    LauncherWatch(launcher.pid, lost.put).start()
    assert str(lost.get(timeout=30)) == MESSAGE


def test_a_launcher_that_ends_after_the_rank_has_left_is_not_missed(
    launcher: "subprocess.Popen[bytes]",
) -> None:
    lost: queue.SimpleQueue[object] = queue.SimpleQueue()
    watch = LauncherWatch(launcher.pid, lost.put)
    watch.start()
    watch.stop()
    launcher.kill()
    for thread in threading.enumerate():
        if thread.name == "launcher watch":
            thread.join(30)
            assert not thread.is_alive()
    assert lost.empty()


@pytest.mark.parametrize(
    ("is_launchers", "limit"), [("True", "LAUNCHER_STORE_LIMIT"), ("False", "STORE_LIMIT")]
)
def test_ranks_do_not_look_for_ever_for_a_store_that_went_with_the_launcher(
    is_launchers: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, limit, timedelta(seconds=0.5))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("MASTER_PORT", str(closed.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", is_launchers)
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    group = make_tp_group("cpu", place | {"TORCHELASTIC_USE_AGENT_STORE": is_launchers})
    with pytest.raises(StartupError, match="do not find each other"):
        join.join_group(group, options="", limit_seconds=60, on_lost=lambda error: pytest.fail(str(error)))
