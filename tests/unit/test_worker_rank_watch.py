"""A rank of the same host that ends or falls silent is noticed, one that goes in good order is not missed."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from worker_svc.tp.rank_watch import RankWatch
from worker_svc.tp.shared_block import SharedBlock

LIMIT_SECONDS = 60.0


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Return a process that stays until its standard input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def watch_of(block: SharedBlock, pid: int, limit_seconds: float) -> "queue.SimpleQueue[object]":
    """Watch rank 5 from rank 4; return where losses are told."""
    lost: queue.SimpleQueue[object] = queue.SimpleQueue()
    watch = RankWatch(
        block,
        ranks=[(4, os.getpid()), (5, pid)],
        own_index=0,
        limit_seconds=limit_seconds,
        on_lost=lost.put,
    )
    watch.start()
    return lost


def test_a_rank_that_is_killed_is_lost_at_once(other: "subprocess.Popen[bytes]") -> None:
    block = SharedBlock.create(num_ranks=2, num_readers=1)
    lost = watch_of(block, other.pid, LIMIT_SECONDS)
    other.kill()
    assert str(lost.get(timeout=30)) == "rank 5 of the worker group has ended"


def test_a_rank_without_a_sign_of_life_is_killed_and_lost(other: "subprocess.Popen[bytes]") -> None:
    block = SharedBlock.create(num_ranks=2, num_readers=1)
    lost = watch_of(block, other.pid, 0.1)
    message = "rank 5 of the worker group has shown no sign of life for 0.1 s"
    assert str(lost.get(timeout=30)) == message
    assert other.wait(30) == -signal.SIGKILL


def test_a_rank_that_ends_with_the_group_is_not_missed(other: "subprocess.Popen[bytes]") -> None:
    block = SharedBlock.create(num_ranks=2, num_readers=1)
    lost = watch_of(block, other.pid, LIMIT_SECONDS)
    block.stop()
    other.kill()
    for thread in threading.enumerate():
        if thread.name == "rank watch":
            thread.join(30)
            assert not thread.is_alive()
    assert lost.empty()


def test_ranks_share_a_block_by_its_path() -> None:
    block = SharedBlock.create(num_ranks=2, num_readers=1, capacity_bytes=64)
    opened = SharedBlock.open(block.path, num_ranks=2, num_readers=1)
    opened.beat(1)
    opened.beat(1)
    block.beat(0)
    assert block.beats() == opened.beats() == (1, 2)
    block.writer().write(b"a step")
    assert opened.reader(0).read() == b"a step"
    block.stop()
    assert opened.is_stopping
