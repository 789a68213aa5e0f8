"""What front ends are told of two worker groups' prefix caches: whose cache it is, and in which order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.engine.v1.engine_service_pb2_grpc import EngineServiceStub

from tests.rpc.engine_bench import LIMIT_SECONDS, attached, new_request, running_engine, wait_until
from tests.stand_in_worker import StandInWorker


@pytest.fixture
async def workers() -> AsyncIterator[tuple[StandInWorker, StandInWorker]]:
    """Run two stand-in workers, which must have seen no fault at the end."""
    pair = (StandInWorker(), StandInWorker())
    for worker in pair:
        await worker.start()
    yield pair
    for worker in pair:
        await worker.stop()
        assert worker.faults == []


async def read(call: Any) -> pb.WatchPrefixCachesResponse:
    message: pb.WatchPrefixCachesResponse = await asyncio.wait_for(call.read(), LIMIT_SECONDS)
    return message


async def test_each_group_counts_its_own_changes(workers: tuple[StandInWorker, StandInWorker]) -> None:
    told: dict[int, pb.WatchPrefixCachesResponse] = {}
    addresses = [worker.address for worker in workers]
    async with (
        running_engine(*addresses) as engine,
        grpc.aio.insecure_channel(f"unix:{engine.socket_path}") as channel,
        attached(engine) as probe,
    ):
        call: Any = EngineServiceStub(channel).WatchPrefixCaches(pb.WatchPrefixCachesRequest())
        # Before any worker came: their caches hold nothing then.
        firsts = [await read(call) for _ in addresses]
        assert [(one.group, one.sequence_number) for one in firsts] == [(0, 0), (1, 0)]
        assert all(one.events == [pb.PrefixCacheEvent(cleared=pb.PrefixCacheCleared())] for one in firsts)
        await probe.wait_ready()
        await wait_until(lambda: all(group.is_serving for group in probe.infos[-1].groups))
        for worker in workers:
            worker.may_run.clear()  # so that the second request goes to the group that has none
        for handle in (1, 2):
            await probe.submit(new_request(handle, 5, seed=1, max_tokens=2, cache_salt="s"))
            message = await read(call)
            told[message.group] = message
        for worker in workers:
            worker.may_run.set()
        await probe.wait_ended(1, 2)
        assert sorted(told) == [0, 1]
        assert sorted(_first_token(message) for message in told.values()) == [50, 100]
        assert [message.sequence_number for message in told.values()] == [1, 1]
        call.cancel()


def _first_token(message: pb.WatchPrefixCachesResponse) -> int:
    (event,) = message.events
    assert (event.stored.parent_hash, event.stored.cache_salt) == (b"", "s")
    assert len(event.stored.block_hashes) == 32
    token_ids = np.frombuffer(event.stored.token_ids, "<i4").tolist()
    assert token_ids == list(range(token_ids[0], token_ids[0] + 4))
    return int(token_ids[0])
