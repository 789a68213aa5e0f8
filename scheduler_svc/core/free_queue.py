"""The order in which free blocks are handed out, each operation in constant time.

Blocks that hold nothing of use go first; then those that the prefix cache could still serve, least
recently used first. Knows nothing about hashes or reference counts.
"""

from collections import OrderedDict
from collections.abc import Iterable

from scheduler_svc.core.types import BlockId


class FreeQueue:
    """Ids of all free blocks."""

    def __init__(self, block_ids: Iterable[BlockId]) -> None:
        # A stack: the block that was freed last is likeliest to be warm in the worker's caches.
        self._empty: list[BlockId] = list(block_ids)
        self._cached: OrderedDict[BlockId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def num_empty(self) -> int:
        """Free blocks that hold nothing of use."""
        return len(self._empty)

    @property
    def num_cached(self) -> int:
        """Free blocks that the prefix cache can still serve."""
        return len(self._cached)

    def push_empty(self, block_id: BlockId) -> None:
        """Add a block that holds nothing of use."""
        self._empty.append(block_id)

    def push_cached(self, block_ids: Iterable[BlockId]) -> None:
        """Add blocks with a hash, in order; the last becomes the most recently used one."""
        self._cached.update(dict.fromkeys(block_ids))

    def pop(self, num_blocks: int) -> list[BlockId]:
        """Take the blocks that are missed least. There must be as many."""
        num_from_empty = min(num_blocks, len(self._empty))
        first = len(self._empty) - num_from_empty
        block_ids = self._empty[first:][::-1]
        del self._empty[first:]
        pop_oldest = self._cached.popitem
        block_ids += [pop_oldest(last=False)[0] for _ in range(num_blocks - num_from_empty)]
        return block_ids

    def take_cached(self, block_id: BlockId) -> None:
        """Take a certain cached block, because a request shares it again."""
        del self._cached[block_id]

    def block_ids(self) -> set[BlockId]:
        """All free ids, for invariant checks."""
        return {*self._empty, *self._cached}
