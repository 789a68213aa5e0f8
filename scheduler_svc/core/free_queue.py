"""The order in which free blocks are handed out, each operation in constant time (amortised).

Blocks that hold nothing of use go first; then those that the prefix cache could still serve, least
recently used first. Knows nothing about hashes or reference counts.
"""

from collections import Counter, deque
from collections.abc import Iterable

from scheduler_svc.core.types import BlockId

MAX_STALE_OF_FEW = 1024
"""Entries that blocks left behind are dropped once they are more than this and all others together."""


class FreeQueue:
    """Ids of all free blocks."""

    def __init__(self, block_ids: Iterable[BlockId]) -> None:
        # A stack: the block that was freed last is likeliest to be warm in the worker's caches.
        self._empty: list[BlockId] = list(block_ids)
        # A block taken from the middle leaves its entry behind, which is skipped when its turn comes:
        # an OrderedDict, which could delete it, costs 15 times as much at both ends.
        self._cached: deque[BlockId] = deque()
        self._num_stale: Counter[BlockId] = Counter()
        """Of each block that left entries behind, how many: they stand before its own, if it has one."""
        self._num_cached = 0

    def __len__(self) -> int:
        return len(self._empty) + self._num_cached

    @property
    def num_empty(self) -> int:
        """Free blocks that hold nothing of use."""
        return len(self._empty)

    @property
    def num_cached(self) -> int:
        """Free blocks that the prefix cache can still serve."""
        return self._num_cached

    def push_empty(self, block_id: BlockId) -> None:
        """Add a block that holds nothing of use."""
        self._empty.append(block_id)

    def push_cached(self, block_ids: list[BlockId]) -> None:
        """Add blocks with a hash, in order; the last becomes the most recently used one."""
        self._cached.extend(block_ids)
        self._num_cached += len(block_ids)

    def pop(self, num_blocks: int) -> list[BlockId]:
        """Take the blocks that are missed least. There must be as many."""
        num_from_empty = min(num_blocks, len(self._empty))
        first = len(self._empty) - num_from_empty
        block_ids = self._empty[first:][::-1]
        del self._empty[first:]
        self._num_cached -= num_blocks - num_from_empty
        pop_oldest = self._cached.popleft
        while self._num_stale and len(block_ids) < num_blocks:
            block_id = pop_oldest()
            if not self._is_stale(block_id):
                block_ids.append(block_id)
        block_ids += [pop_oldest() for _ in range(num_blocks - len(block_ids))]
        return block_ids

    def take_cached(self, block_id: BlockId) -> None:
        """Take a certain cached block, because a request shares it again. It must be one."""
        self._num_stale[block_id] += 1
        self._num_cached -= 1
        if len(self._cached) > 2 * self._num_cached + MAX_STALE_OF_FEW:
            self._drop_stale()

    def block_ids(self) -> set[BlockId]:
        """All free ids, for invariant checks."""
        self._drop_stale()
        return {*self._empty, *self._cached}

    def _is_stale(self, block_id: BlockId) -> bool:
        """Tell whether the block's oldest entry was left behind, and forget that entry."""
        num_stale = self._num_stale.get(block_id, 0)
        if num_stale > 1:
            self._num_stale[block_id] = num_stale - 1
        elif num_stale:
            del self._num_stale[block_id]
        return num_stale > 0

    def _drop_stale(self) -> None:
        self._cached = deque(block_id for block_id in self._cached if not self._is_stale(block_id))
