"""Who holds which KV block: reference counts, the free queue and the prefix cache's index.

A block is *held* (its count is above 0), or *free*; a free block with a hash is *cached* and can be
shared again until it is reused. "No free block" is an answer here, not an error. Knows nothing about
requests, lanes or steps.

The index is many small dicts, by a hash's first byte. A dict that is inserted into and deleted from is
built anew each time its room is used up: of 65,536 blocks that was 5 MiB at once, beside the old one, whose
memory the process did not always give back, and milliseconds in a step.

Source: block manager of PagedAttention (Kwon et al., 2023); lazy eviction as in vLLM.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from scheduler_svc.core.cache_events import BlocksRemoved, CacheJournal
from scheduler_svc.core.free_queue import FreeQueue
from scheduler_svc.core.types import BlockHash, BlockId

_NUM_DICTS = 64
_DICT_MASK = _NUM_DICTS - 1


class BlockPool:
    """Blocks 1 .. num_blocks."""

    def __init__(self, num_blocks: int, journal: CacheJournal | None = None) -> None:
        self.num_blocks = num_blocks
        self._journal = journal or CacheJournal()
        # Lowest ids first out of a stack, so that a lightly used pool stays in few pages.
        self._free = FreeQueue(BlockId(i) for i in range(num_blocks, 0, -1))
        self._ref_counts = [0] * (num_blocks + 1)
        self._hash_of: list[BlockHash | None] = [None] * (num_blocks + 1)
        self._blocks_by_byte: tuple[dict[BlockHash, BlockId], ...] = tuple({} for _ in range(_NUM_DICTS))

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached ones among them."""
        return len(self._free)

    @property
    def num_empty(self) -> int:
        """Free blocks that hold nothing of use."""
        return self._free.num_empty

    @property
    def num_cached(self) -> int:
        """Free blocks that the prefix cache can still serve."""
        return self._free.num_cached

    def allocate(self, num_blocks: int) -> list[BlockId] | None:
        """Take free blocks with a count of 1 each, evicting cached ones where needed.

        Returns:
            The ids, or None where there are too few; then nothing has changed.
        """
        if num_blocks > len(self._free):
            return None
        num_empty = self._free.num_empty
        block_ids, ref_counts = self._free.pop(num_blocks), self._ref_counts
        for block_id in block_ids:
            ref_counts[block_id] = 1
        if num_blocks > num_empty:
            self._evict(block_ids[num_empty:])
        return block_ids

    def holds(self, block_hash: BlockHash) -> bool:
        """Tell whether the prefix cache can serve this block."""
        return block_hash in self._blocks_by_byte[block_hash[0] & _DICT_MASK]

    def match(self, block_hashes: Iterable[BlockHash]) -> list[BlockId]:
        """Find the longest run of blocks, from the first, that hold these hashes. Changes nothing."""
        block_ids: list[BlockId] = []
        for block_hash in block_hashes:
            block_id = self._blocks_by_byte[block_hash[0] & _DICT_MASK].get(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def num_free_among(self, block_ids: Iterable[BlockId]) -> int:
        """Count the blocks that nobody holds: sharing them takes as many from ``num_free``."""
        return sum(self._ref_counts[block_id] == 0 for block_id in block_ids)

    def share(self, block_ids: Iterable[BlockId]) -> None:
        """Hold matched blocks once more."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                assert self._hash_of[block_id] is not None, f"block {block_id} is shared but not cached"
                self._free.take_cached(block_id)
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """Give up one hold on each block of a table.

        The table's end is freed first, so that it is evicted before its beginning: a prefix is worth
        nothing without the blocks before it.
        """
        ref_counts, hash_of = self._ref_counts, self._hash_of
        cached: list[BlockId] = []
        for block_id in reversed(block_ids):
            ref_count = ref_counts[block_id]
            assert ref_count > 0, f"block {block_id} is released but not held"
            ref_counts[block_id] = ref_count - 1
            if ref_count == 1:
                if hash_of[block_id] is None:
                    self._free.push_empty(block_id)
                else:
                    cached.append(block_id)
        self._free.push_cached(cached)

    def _evict(self, block_ids: Sequence[BlockId]) -> None:
        """Have the prefix cache forget blocks that it can serve."""
        evicted: list[BlockHash] = []
        for block_id in block_ids:
            block_hash = self._hash_of[block_id]
            assert block_hash is not None, f"block {block_id} was free and neither empty nor cached"
            del self._blocks_by_byte[block_hash[0] & _DICT_MASK][block_hash]
            self._hash_of[block_id] = None
            evicted.append(block_hash)
        if self._journal.is_kept:
            self._journal.note(BlocksRemoved(block_hashes=tuple(evicted)))

    def frees_any(self, *tables: Iterable[BlockId]) -> bool:
        """Tell whether releasing these tables together would free a block now."""
        num_holds = Counter(block_id for table in tables for block_id in table)
        return any(self._ref_counts[block_id] == count for block_id, count in num_holds.items())

    def register(self, block_ids: Sequence[BlockId], block_hashes: Sequence[BlockHash]) -> None:
        """Let the prefix cache find held blocks. Of two identical blocks the first keeps the key."""
        hash_of, blocks_by_byte = self._hash_of, self._blocks_by_byte
        is_held = map(self._ref_counts.__getitem__, block_ids)
        assert all(is_held), f"one of the blocks {list(block_ids)} is registered but not held"
        for block_id, block_hash in zip(block_ids, block_hashes, strict=True):
            if hash_of[block_id] is None:
                block_of = blocks_by_byte[block_hash[0] & _DICT_MASK]
                if block_of.setdefault(block_hash, block_id) == block_id:
                    hash_of[block_id] = block_hash

    def ref_counts(self) -> dict[BlockId, int]:
        """Counts of all held blocks, for invariant checks."""
        return {BlockId(i): count for i, count in enumerate(self._ref_counts) if count}

    def free_block_ids(self) -> set[BlockId]:
        """Ids of all free blocks, for invariant checks."""
        return self._free.block_ids()

    def index(self) -> dict[BlockHash, BlockId]:
        """Copy the prefix cache's index, for invariant checks."""
        index = {key: i for block_of in self._blocks_by_byte for key, i in block_of.items()}
        assert all(self._hash_of[i] == key for key, i in index.items())
        return index
