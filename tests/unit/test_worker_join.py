"""Ranks that were started with other options, or have loaded something else, are refused by name."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rpc.fake_model_runner import FakeModelRunner
from tests.rpc.worker_harness import INFO, LIMITS
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError, StartupError
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.worker_info import LoadedWorker
from worker_svc.tp import ranks_start
from worker_svc.tp.join import Membership, RankCard, check_cards
from worker_svc.tp.shared_block import SharedBlock


class Others:
    """A membership in a group of two, whose other rank says this."""

    def __init__(self, says: Callable[[str], str]) -> None:
        self._says = says
        self.published: list[bytes] = []

    def gather(self, own: str) -> list[str]:
        return [own, self._says(own)]

    def publish(self, message: bytes) -> None:
        self.published.append(message)


def worker() -> LoadedWorker:
    return LoadedWorker(info=replace(INFO, tp_size=2), executor=StepExecutor(LIMITS, FakeModelRunner()))


def card(rank: int, **options: Any) -> RankCard:
    options_of_all = ranks_start.shared_options(WorkerConfig(model="m", **options))
    return RankCard(rank=rank, pid=rank, host_index=0, options=options_of_all)


def test_what_a_rank_may_have_of_its_own_is_not_compared() -> None:
    check_cards([card(0, port=1, log_level="error"), card(1, port=2, host="0.0.0.0")])


def test_a_rank_with_other_options_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"rank 1 was started with other options than rank 0: .*'block_size': 4"
    ):
        check_cards([card(0), card(1, block_size=4)])


def test_a_rank_that_has_loaded_something_else_is_named() -> None:
    others: Any = Others(lambda own: own.replace("num_blocks=20", "num_blocks=19"))
    with pytest.raises(StartupError, match=r"rank 1 has loaded config abc, .*num_blocks=19"):
        ranks_start.lead(worker(), others)


def test_a_rank_that_ends_while_others_wait_for_it_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(values: list[str], own: str) -> None:
        raise RuntimeError(f"connection closed by peer after {own}, {len(values)} ranks")

    monkeypatch.setattr("worker_svc.tp.join.distributed.all_gather_object", lose)
    nothing: Any = None
    group: Any = SimpleNamespace(is_leader=True, local_size=1, size=2, device="cpu")
    membership = Membership(group, nothing, watches=(), links=())
    with pytest.raises(
        StartupError, match="another rank of the worker group has ended while it started: conn"
    ):
        membership.gather("mine")


def test_the_memory_of_a_rank_that_has_ended_is_told_in_a_line() -> None:
    with pytest.raises(StartupError, match=r"has ended while it started: .*/proc/0/fd/3"):
        SharedBlock.open("/proc/0/fd/3", num_ranks=2, num_readers=1)


def test_a_leading_worker_tells_what_it_does_and_ends_with_a_step_that_fails() -> None:
    others: Any = Others(lambda own: own)
    leading = ranks_start.lead(worker(), others)
    leading.executor.start_epoch()
    assert others.published == [b"\x01"]
    with pytest.raises(RuntimeError, match="other ranks"):
        leading.check_device()
