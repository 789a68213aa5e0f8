"""What happened in a prefix cache, to protobuf.

Knows nothing about streams, nor about what a block is worth.
"""

from stepwire.engine.v1 import engine_service_pb2 as pb

from scheduler_svc.core.cache_events import BlocksRemoved, BlocksStored, CacheCleared, CacheEvent
from scheduler_svc.engine.convert import int32_bytes
from scheduler_svc.engine.values import CacheBatch


def cache_batch_to_pb(batch: CacheBatch) -> pb.WatchPrefixCachesResponse:
    """Encode the changes of one group."""
    return pb.WatchPrefixCachesResponse(
        group=batch.group,
        sequence_number=batch.sequence_number,
        events=[_event_to_pb(event) for event in batch.events],
    )


def _event_to_pb(event: CacheEvent) -> pb.PrefixCacheEvent:
    match event:
        case BlocksStored():
            stored = pb.PrefixBlocksStored(
                parent_hash=event.parent_hash or b"",
                block_hashes=b"".join(event.block_hashes),
                token_ids=int32_bytes(event.token_ids),
                cache_salt=event.cache_salt,
            )
            return pb.PrefixCacheEvent(stored=stored)
        case BlocksRemoved(block_hashes=block_hashes):
            return pb.PrefixCacheEvent(removed=pb.PrefixBlocksRemoved(block_hashes=b"".join(block_hashes)))
        case CacheCleared():
            return pb.PrefixCacheEvent(cleared=pb.PrefixCacheCleared())
