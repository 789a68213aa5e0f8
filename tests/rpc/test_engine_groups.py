"""The engine with several worker groups: who gets what, and what becomes of a dead group's requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from scheduler_svc.errors import ModelMismatchError
from tests.rpc.engine_bench import (
    FrontEndProbe,
    RunningEngine,
    attached,
    new_request,
    num_running,
    run_until_it_fails,
    running_engine,
    wait_until,
)
from tests.stand_in_lanes import StandInLimits, expected_tokens
from tests.stand_in_worker import StandInWorker

WAITING, RUNNING = pb.REQUEST_STATUS_WAITING_FOR_WORKER, pb.REQUEST_STATUS_RUNNING
LINK = {"heartbeat_seconds": 0.02, "silence_seconds": 0.2}


@pytest.fixture
async def workers() -> AsyncIterator[list[StandInWorker]]:
    """Run two stand-in workers, which must have seen no fault at the end."""
    workers = [StandInWorker(step_seconds=0.001) for _ in range(2)]
    for worker in workers:
        await worker.start()
    yield workers
    for worker in workers:
        await worker.stop()
        assert worker.faults == []


@asynccontextmanager
async def served_by(
    workers: list[StandInWorker], **options: Any
) -> AsyncIterator[tuple[RunningEngine, FrontEndProbe]]:
    """Run an engine that all ``workers`` have come to."""
    addresses = [worker.address for worker in workers]
    async with running_engine(*addresses, **options) as engine, attached(engine) as probe:
        await wait_until(lambda: all(group.is_serving for group in probe.infos[-1].groups))
        yield engine, probe


async def test_requests_spread_and_the_state_tells_each_group(workers: list[StandInWorker]) -> None:
    async with served_by(workers) as (engine, probe):
        for worker in workers:
            worker.may_run.clear()
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=6) for handle in range(1, 8)))
        await wait_until(lambda: num_running(engine) == 7)
        state = await engine.state()
        assert [one.address for one in state.workers] == [worker.address for worker in workers]
        assert [(one.num_running, one.num_blocks) for one in state.workers] == [(4, 64), (3, 64)]
        assert (state.num_running, state.num_blocks) == (7, 128)
        assert state.kv_cache_usage_ratio == sum(one.kv_cache_usage_ratio for one in state.workers) / 2 > 0
        for worker in workers:
            worker.may_run.set()
        await probe.wait_ended(*range(1, 8))
        assert probe.tokens == {handle: expected_tokens(handle, 5, 6) for handle in range(1, 8)}
        await engine.wait_idle()
        assert (await engine.state()).num_finished_total == 7


async def test_a_request_goes_where_its_prefix_is_cached(workers: list[StandInWorker]) -> None:
    async with served_by(workers) as (_, probe):
        await probe.submit(new_request(1, 9, max_tokens=40), new_request(2, 9, max_tokens=1))
        await probe.wait_ended(2)
        # Group 1 has nothing to do, but group 0 has the prefix, and lanes left.
        await probe.submit(new_request(3, list(range(50, 62)), max_tokens=1))
        await probe.wait_ended(3)
        assert probe.ended[3].num_cached_tokens == 8
        await probe.submit(new_request(4, list(range(100, 112)), max_tokens=1))
        await probe.wait_ended(4)
        assert probe.ended[4].num_cached_tokens == 8


async def test_a_dead_groups_requests_move_at_once(workers: list[StandInWorker]) -> None:
    async with served_by(workers) as (engine, probe):
        handles = range(1, 13)
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=40) for handle in handles))
        await probe.wait_tokens(1, 3)
        await workers[0].stop()
        await probe.wait_ended(*handles)
        assert probe.tokens == {handle: expected_tokens(handle, 5, 40) for handle in handles}
        # Nobody waited for a worker, and the scheduler was ready all the time.
        assert probe.statuses == {}
        assert all(info.is_ready for info in probe.infos[2:])
        state = await engine.state()
        assert [(one.is_serving, one.num_epochs_lost) for one in state.workers] == [(False, 1), (True, 0)]
        assert state.workers[0].reason
        await engine.wait_idle()
        assert workers[1].num_lanes_held == 0
        await workers[0].start(int(workers[0].address.rpartition(":")[2]))
        await wait_until(lambda: probe.infos[-1].groups[0].is_serving)


async def test_a_hung_groups_requests_move(workers: list[StandInWorker]) -> None:
    async with served_by(workers, link=LINK) as (_, probe):
        workers[1].is_silent = True
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=10) for handle in range(1, 5)))
        await probe.wait_ended(*range(1, 5))
        assert probe.tokens == {handle: expected_tokens(handle, 5, 10) for handle in range(1, 5)}
        assert any("sent nothing for 0.2 s" in info.groups[1].reason for info in probe.infos)
        workers[1].is_silent = False


async def test_a_smaller_group_takes_what_it_can_hold(workers: list[StandInWorker]) -> None:
    workers[1].limits = StandInLimits(block_size=2, max_model_len=16, num_blocks=32, max_num_seqs=2)
    async with served_by(workers) as (_, probe):
        assert probe.infos[-1].max_model_len == 64
        # Too long for group 1; the rest may go to either.
        await probe.submit(new_request(1, 5, max_tokens=50))
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=10) for handle in range(2, 8)))
        await probe.submit(new_request(8, 5, seed=8))
        await probe.wait_tokens(1, 1)
        await workers[0].stop()
        await probe.wait_ended(*range(1, 9))
        assert probe.ended[1].reason == pb.REQUEST_END_INVALID
        assert probe.ended[1].message == (
            "max_tokens is 50, but with 5 prompt tokens must fit 16 (max_model_len) and 64 (the KV cache)"
        )
        for handle in range(2, 8):
            assert probe.tokens[handle] == expected_tokens(handle, 5, 10)
        assert probe.tokens[8] == expected_tokens(8, 5, len(probe.tokens[8]))
        assert probe.infos[-1].max_model_len == 16
        await probe.submit(new_request(9, 5, max_tokens=12))
        await probe.wait_ended(9)
        assert probe.ended[9].reason == pb.REQUEST_END_INVALID
        await workers[0].start()


async def test_a_request_goes_to_the_group_that_can_hold_it(workers: list[StandInWorker]) -> None:
    workers[0].limits = StandInLimits(max_model_len=16)
    async with served_by(workers) as (_, probe):
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=40) for handle in (1, 2, 3)))
        await probe.wait_ended(1, 2, 3)
        assert probe.tokens == {handle: expected_tokens(handle, 5, 40) for handle in (1, 2, 3)}
        assert workers[0].num_steps == 0


async def test_what_a_group_that_is_yet_to_come_may_hold_is_to_be_tried_again(
    workers: list[StandInWorker],
) -> None:
    workers[0].limits = StandInLimits(max_model_len=16)
    await workers[1].stop()
    async with running_engine(*(one.address for one in workers)) as engine, attached(engine) as probe:
        await probe.wait_ready()
        assert (probe.infos[-1].max_model_len, probe.infos[-1].num_unknown_groups) == (16, 1)
        await probe.submit(new_request(1, 5, max_tokens=40), new_request(2, 5, seed=2, max_tokens=11))
        # Longer already than the small group's context: a large group told it, before an engine was lost.
        await probe.submit(new_request(3, 5, output_token_ids=bytes(4 * 20)))
        await probe.wait_ended(1, 2, 3)
        assert {probe.ended[handle].reason for handle in (1, 3)} == {pb.REQUEST_END_UNAVAILABLE}
        assert probe.ended[1].message == (
            "max_tokens is 40, but with 5 prompt tokens must fit 16 (max_model_len) and 256 (the KV cache), "
            "so far: worker groups that may allow more have not connected yet (1)"
        )
        assert probe.tokens == {2: expected_tokens(2, 5, 11)}
        await workers[1].start(int(workers[1].address.rpartition(":")[2]))
        await wait_until(lambda: not probe.infos[-1].num_unknown_groups)
        await probe.submit(new_request(4, 5, seed=4, max_tokens=40), new_request(5, 5, max_tokens=60))
        await probe.wait_ended(4, 5)
        assert probe.tokens[4] == expected_tokens(4, 5, 40)
        assert probe.ended[5].reason == pb.REQUEST_END_INVALID


async def test_a_group_that_does_not_fit_is_not_waited_for(workers: list[StandInWorker]) -> None:
    workers[1].limits = StandInLimits(config_hash="badc0de")
    async with running_engine(*(one.address for one in workers)) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await wait_until(lambda: not probe.infos[-1].num_unknown_groups)
        await probe.submit(new_request(1, 5, max_tokens=60))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_INVALID


async def test_a_request_that_moved_can_be_aborted(workers: list[StandInWorker]) -> None:
    async with served_by(workers) as (engine, probe):
        await probe.submit(new_request(1, 5), new_request(2, 5))
        await probe.wait_tokens(1, 1)
        workers[1].may_run.clear()
        await workers[0].stop()
        await wait_until(lambda: not probe.infos[-1].groups[0].is_serving)
        await probe.end(1, pb.END_REASON_ABORT)
        await probe.abort("request-2")
        await probe.wait_ended(1, 2)
        assert {probe.ended[handle].reason for handle in (1, 2)} == {pb.REQUEST_END_ABORT}
        workers[1].may_run.set()
        await engine.wait_idle()
        await workers[0].start()


async def test_without_any_group_requests_wait_are_told_so_and_go_on_with_the_first(
    workers: list[StandInWorker],
) -> None:
    async with served_by(workers, repeat_seconds=0.05) as (engine, probe):
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=40) for handle in range(1, 5)))
        await probe.wait_tokens(4, 2)
        await workers[1].stop()
        await workers[0].stop()
        await probe.submit(new_request(5, 5, seed=5, max_tokens=5))
        await wait_until(lambda: all(len(probe.statuses.get(handle, ())) >= 3 for handle in range(1, 6)))
        assert set().union(*map(set, probe.statuses.values())) == {WAITING}
        assert not probe.infos[-1].is_ready
        assert all(worker.address in probe.infos[-1].reason for worker in workers)
        await workers[1].start(int(workers[1].address.rpartition(":")[2]))
        await probe.wait_ended(*range(1, 6))
        for handle in range(1, 6):
            assert probe.statuses[handle][-1] == RUNNING
            assert probe.statuses[handle].count(RUNNING) == 1
            num_tokens = 5 if handle == 5 else 40
            assert probe.tokens[handle] == expected_tokens(handle, 5, num_tokens)
        await engine.wait_idle()
        await workers[0].start()


async def test_a_group_with_another_model_does_not_serve_and_says_why(workers: list[StandInWorker]) -> None:
    workers[0].limits = StandInLimits(config_hash="badc0de")
    async with (
        running_engine(*(worker.address for worker in workers)) as engine,
        attached(engine) as probe,
    ):
        await probe.wait_ready()
        await wait_until(lambda: "badc0de" in probe.infos[-1].groups[0].reason)
        assert workers[0].address in probe.infos[-1].groups[0].reason
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=5) for handle in range(1, 4)))
        await probe.wait_ended(1, 2, 3)
        assert (workers[0].num_steps, probe.tokens[3]) == (0, expected_tokens(3, 5, 5))


async def test_when_no_group_has_the_model_the_start_fails(workers: list[StandInWorker]) -> None:
    for worker in workers:
        worker.limits = StandInLimits(config_hash="badc0de")
    with pytest.raises(ModelMismatchError, match=r"does not fit.*badc0de"):
        await run_until_it_fails(*(worker.address for worker in workers))


async def test_a_request_that_kills_workers_ends_and_the_others_do_not(workers: list[StandInWorker]) -> None:
    for worker in workers:
        worker.killing_token_id = 450  # the first token of request 9's prompt
    async with served_by(workers) as (engine, probe):
        handles = range(1, 10)
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=30) for handle in handles))
        await probe.wait_ended(*handles)
        assert probe.ended[9].reason == pb.REQUEST_END_INTERNAL
        assert probe.ended[9].message == "3 workers were lost while they ran this request"
        for handle in range(1, 9):
            assert probe.ended[handle].reason == pb.REQUEST_END_LENGTH
            assert probe.tokens[handle] == expected_tokens(handle, 5, 30)
        assert sum(one.num_epochs_lost for one in (await engine.state()).workers) == 3


def _has_told_of_leaving_and_coming(probe: FrontEndProbe, num_told: int) -> bool:
    return len(probe.infos) >= num_told + 2 and probe.infos[-1].is_ready


async def test_a_request_outlives_any_number_of_workers_that_leave(workers: list[StandInWorker]) -> None:
    worker = workers[0]
    worker.step_seconds = 0.005
    async with served_by(workers[:1]) as (engine, probe):
        await probe.submit(new_request(1, 3, seed=1, max_tokens=60))
        for index in range(5):
            await probe.wait_tokens(1, 3 * (index + 1))
            num_told = len(probe.infos)
            worker.leave()
            await wait_until(partial(_has_told_of_leaving_and_coming, probe, num_told))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_LENGTH
        assert probe.tokens[1] == expected_tokens(1, 3, 60)
        assert [one.num_epochs_lost for one in (await engine.state()).workers] == [5]


async def test_the_queue_limit_counts_all_groups(workers: list[StandInWorker]) -> None:
    async with served_by(workers, max_num_seqs=1, max_num_waiting=3) as (engine, probe):
        for worker in workers:
            worker.may_run.clear()
        await probe.submit(*(new_request(handle, 5, max_tokens=3) for handle in (1, 2)))
        await wait_until(lambda: num_running(engine) == 2)
        await probe.submit(*(new_request(handle, 5, max_tokens=3) for handle in (3, 4, 5, 6)))
        await probe.submit(new_request(7, 5, request_id="request-1"))
        await probe.wait_ended(6, 7)
        assert probe.ended[6].reason == pb.REQUEST_END_QUEUE_FULL
        assert probe.ended[7].reason == pb.REQUEST_END_DUPLICATE_ID
        for worker in workers:
            worker.may_run.set()
        await probe.wait_ended(1, 2, 3, 4, 5)
