"""However a request ends, its tenant's quota is given back, once."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from tests.rpc.engine_bench import attached, new_request, num_running, num_waiting, running_engine, wait_until
from tests.stand_in_lanes import StandInLimits
from tests.stand_in_worker import StandInWorker

LIMITS = StandInLimits(num_blocks=64, max_num_seqs=4, max_model_len=256, max_num_batched_tokens=64)
QUOTA = pb.TenantQuota(tenant="a", max_num_requests=5, max_num_tokens=150)


@pytest.fixture
async def worker() -> AsyncIterator[StandInWorker]:
    """Run a stand-in worker; it must have seen no fault at the end."""
    worker = StandInWorker(LIMITS)
    await worker.start()
    yield worker
    await worker.stop()
    assert worker.faults == []


async def test_a_quota_is_given_back_with_every_kind_of_end(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        # Each counts for 5 + 25 tokens, so that the five fill the quota in both ways. Four run, one waits.
        fields: dict[str, Any] = {"quota": QUOTA, "max_tokens": 25}
        await probe.submit(
            *(new_request(handle, 5, **fields) for handle in range(1, 5)),
            new_request(5, 5, timeout_ns=1, **fields),
        )
        await probe.wait_ended(5)
        assert probe.ended[5].reason == pb.REQUEST_END_DEADLINE
        # In the place of one that lives, and then of one that has ended.
        await probe.submit(
            new_request(6, 5, **fields | {"request_id": "request-1", "takes_over": True}),
            new_request(7, 5, **fields | {"request_id": "request-5", "takes_over": True}),
            new_request(8, 5, **fields),
        )
        await probe.wait_ended(1, 8)
        assert [probe.ended[one].reason for one in (1, 8)] == [
            pb.REQUEST_END_ABORT,
            pb.REQUEST_END_QUEUE_FULL,
        ]
        await probe.abort("request-2")
        await probe.wait_ended(2)
        await probe.end(3, pb.END_REASON_DISCONNECT)
        await probe.end(4, pb.END_REASON_STOP_STRING, 1)
        await wait_until(lambda: num_running(engine) + num_waiting(engine) == 2)
        async with attached(engine) as other:
            await other.submit(*(new_request(handle, 5, **fields) for handle in (11, 12, 13, 14)))
            await other.wait_ended(14)
            assert other.ended[14].message.startswith("tenant 'a' has 5 requests in flight")
        # That front end went, with its requests.
        await wait_until(lambda: num_running(engine) + num_waiting(engine) == 2)
        worker.may_run.set()
        await probe.wait_ended(6, 7)
        assert [probe.ended[one].reason for one in (6, 7)] == [pb.REQUEST_END_LENGTH] * 2
        await engine.wait_idle()
        await probe.submit(*(new_request(handle, 5, **fields) for handle in range(21, 26)))
        await probe.wait_ended(*range(21, 26))
        assert {probe.ended[one].reason for one in range(21, 26)} == {pb.REQUEST_END_LENGTH}
        await engine.wait_idle()


def has_come(worker: StandInWorker, num_engines: int) -> bool:
    return len(worker.hellos) == num_engines


async def test_a_quota_outlives_workers_and_is_given_back_by_the_last(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        quota = pb.TenantQuota(tenant="a", max_num_requests=1)
        await probe.submit(new_request(1, 5, quota=quota, max_tokens=3))
        for num_lost in (1, 2, 3):
            await wait_until(lambda: num_running(engine) == 1)
            await probe.submit(new_request(10 + num_lost, 5, quota=quota, max_tokens=3))
            await probe.wait_ended(10 + num_lost)
            assert probe.ended[10 + num_lost].reason == pb.REQUEST_END_QUEUE_FULL
            worker.break_stream()
            await wait_until(partial(has_come, worker, num_lost + 1))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_INTERNAL
        worker.may_run.set()
        await engine.wait_idle()
