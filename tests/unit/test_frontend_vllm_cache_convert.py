"""What one subscriber to the prefix caches is told, by messages of the engine."""

from typing import Any

import numpy as np
from smg_grpc_proto.generated import common_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2 as engine_pb

from scheduler_svc.frontend.tenants import ANYBODY, Tenant
from scheduler_svc.frontend.vllm_cache_convert import EventStream

ALICE = Tenant(name="alice", cache_salt="alice")


def block_hash(number: int) -> bytes:
    return number.to_bytes(32, "little")


def stored(*numbers: int, cache_salt: str) -> engine_pb.PrefixCacheEvent:
    return engine_pb.PrefixCacheEvent(
        stored=engine_pb.PrefixBlocksStored(
            block_hashes=b"".join(map(block_hash, numbers)),
            token_ids=np.array(numbers, "<i4").tobytes(),
            cache_salt=cache_salt,
        )
    )


def removed(*numbers: int) -> engine_pb.PrefixCacheEvent:
    hashes = b"".join(map(block_hash, numbers))
    return engine_pb.PrefixCacheEvent(removed=engine_pb.PrefixBlocksRemoved(block_hashes=hashes))


def cleared() -> engine_pb.PrefixCacheEvent:
    return engine_pb.PrefixCacheEvent(cleared=engine_pb.PrefixCacheCleared())


def told(stream: EventStream, *events: engine_pb.PrefixCacheEvent, group: int = 0) -> list[Any]:
    """Write a batch; return, of each event, its number, what it is and the hashes that it names."""
    message = engine_pb.WatchPrefixCachesResponse(group=group, sequence_number=1, events=events)
    return [
        (event.event_id, event.WhichOneof("data"), _hashes_of(event))
        for event in stream.write_batch(message, now_seconds=0.0).events
    ]


def _hashes_of(event: pb.KvCacheEvent) -> list[int]:
    return [block.block_hash for block in event.stored.blocks] or list(event.removed.block_hashes)


def test_another_tenant_s_blocks_are_not_told_when_they_go_either() -> None:
    stream = EventStream(ALICE)
    batch = (stored(1, 2, cache_salt="alice/"), stored(3, cache_salt="bob/"))
    assert told(stream, *batch) == [(1, "stored", [1, 2])]
    assert told(stream, removed(3)) == []
    assert told(stream, removed(3, 2)) == [(2, "removed", [2])]
    assert told(stream, removed(2, 1)) == [(3, "removed", [1])]


def test_each_group_has_blocks_of_its_own_and_clearing_forgets_them() -> None:
    stream = EventStream(ANYBODY)
    told(stream, stored(1, cache_salt=""), group=0)
    told(stream, stored(1, cache_salt=""), group=1)
    assert told(stream, removed(1), cleared(), group=0) == [(3, "removed", [1]), (4, "cleared", [])]
    assert told(stream, cleared(), removed(1), group=1) == [(5, "cleared", [])]
