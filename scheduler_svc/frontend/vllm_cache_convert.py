"""What happens in the prefix caches, in the messages of vllm.grpc.engine.VllmEngine.

A worker group is a rank here: each counts its own messages. Of several tenants each is told of its own
blocks only, because they hold prompts. Knows nothing about how messages travel.
"""

import numpy as np
from smg_grpc_proto.generated import common_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2 as engine_pb

from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.tenants import Tenant

_HASH_BYTES = 32
_NUM_TOLD_HASH_BYTES = 8
_MAX_FLUSH_SECONDS = 3600.0


class EventStream:
    """What one subscriber is told: of blocks that it was not told of, not even that they are gone.

    A hash is enough to check a guess of what another tenant's prompt was.
    """

    def __init__(self, tenant: Tenant) -> None:
        """Start a stream for ``tenant``."""
        self._tenant = tenant
        self._num_events = 0
        self._told_of_group: dict[int, set[int]] = {}
        """Hashes that were stored and not removed."""

    def write_batch(
        self, message: engine_pb.WatchPrefixCachesResponse, *, now_seconds: float
    ) -> pb.KvEventBatch:
        """Write the changes of one group; ``now_seconds`` is since the epoch."""
        told = self._told_of_group.setdefault(message.group, set())
        batch = pb.KvEventBatch(
            sequence_number=message.sequence_number, timestamp=now_seconds, dp_rank=message.group
        )
        for message_event in message.events:
            event = self._write_event(message_event, told)
            if event is not None:
                self._num_events += 1
                event.event_id = self._num_events
                batch.events.append(event)
        return batch

    def _write_event(self, event: engine_pb.PrefixCacheEvent, told: set[int]) -> pb.KvCacheEvent | None:
        match event.WhichOneof("event"):
            case "stored" if (salt := self._tenant.own_cache_salt(event.stored.cache_salt)) is not None:
                stored = _write_stored(event.stored, salt)
                told.update(block.block_hash for block in stored.blocks)
                return pb.KvCacheEvent(stored=stored)
            case "removed" if removed := [
                block_hash for block_hash in _write_hashes(event.removed.block_hashes) if block_hash in told
            ]:
                told.difference_update(removed)
                return pb.KvCacheEvent(removed=pb.KvBlocksRemoved(block_hashes=removed))
            case "cleared":
                told.clear()
                return pb.KvCacheEvent(cleared=pb.KvCacheCleared())
        return None


def read_flush_timeout(request: pb.FlushCacheRequest) -> float:
    """Read how long a flush may wait for requests to end.

    Raises:
        InvalidRequestError: if that is no time.
    """
    if not 0 <= request.timeout_s <= _MAX_FLUSH_SECONDS:  # NaN fails too
        raise InvalidRequestError.of("timeout_s", request.timeout_s, f"be in [0, {_MAX_FLUSH_SECONDS:g}]")
    return request.timeout_s


def write_flushed(num_live: int) -> pb.FlushCacheResponse:
    """Write whether the caches were flushed, or how many requests live instead."""
    if num_live:
        return pb.FlushCacheResponse(message=f"nothing was flushed: {num_live} requests live")
    return pb.FlushCacheResponse(success=True, message="all cached prefixes are forgotten")


def _write_stored(stored: engine_pb.PrefixBlocksStored, cache_salt: str) -> pb.KvBlocksStored:
    hashes = _write_hashes(stored.block_hashes)
    blocks = np.frombuffer(stored.token_ids, "<i4").reshape(len(hashes), -1).tolist()
    message = pb.KvBlocksStored(
        blocks=[
            pb.KvBlock(block_hash=block_hash, token_ids=token_ids, block_size=len(token_ids))
            for block_hash, token_ids in zip(hashes, blocks, strict=True)
        ]
    )
    if stored.parent_hash:
        (message.parent_block_hash,) = _write_hashes(stored.parent_hash)
    if cache_salt:
        message.cache_salt = cache_salt
    return message


def _write_hashes(data: bytes) -> list[int]:
    """Cut hashes to the signed 64 bits that the contract has room for: names of blocks, not proofs."""
    starts = range(0, len(data), _HASH_BYTES)
    return [
        int.from_bytes(data[start : start + _NUM_TOLD_HASH_BYTES], "little", signed=True) for start in starts
    ]
