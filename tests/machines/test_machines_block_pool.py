"""Hypothesis state machine of the block pool alone, against dicts and lists.

Knows nothing about requests: a table here is just the blocks that somebody holds.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.types import BlockHash, BlockId

KEYS = [BlockHash(bytes([i]) * 32) for i in range(8)]


class BlockPoolMachine(RuleBasedStateMachine):
    """Holds tables as requests do: shared blocks first, then fresh ones, then keys, then release."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        """Make the pool and the naive model: tables, empty ids, cached ids, the key of each id."""
        self.pool = BlockPool(num_blocks)
        self.num_blocks = num_blocks
        self.tables: list[list[BlockId]] = []
        self.empty = {BlockId(i) for i in range(1, num_blocks + 1)}
        self.cached: list[BlockId] = []
        self.keys: dict[BlockId, BlockHash] = {}

    def _naive_match(self, keys: list[BlockHash]) -> list[BlockId]:
        block_ids: list[BlockId] = []
        for key in keys:
            holders = [block_id for block_id, held_key in self.keys.items() if held_key == key]
            if not holders:
                break
            block_ids += holders
        return block_ids

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True), num_fresh=st.integers(0, 5))
    def start_table(self, keys: list[BlockHash], num_fresh: int) -> None:
        """Share the longest known prefix, then allocate."""
        matched = self.pool.match(keys)
        assert matched == self._naive_match(keys)
        assert self.pool.num_free_among(matched) == sum(block_id in self.cached for block_id in matched)
        self.pool.share(matched)
        self.cached = [block_id for block_id in self.cached if block_id not in matched]
        self.tables.append(matched + self._allocate(num_fresh))

    def _allocate(self, num_blocks: int) -> list[BlockId]:
        block_ids = self.pool.allocate(num_blocks)
        if num_blocks > len(self.empty) + len(self.cached):
            assert block_ids is None
            return []
        assert block_ids is not None
        assert len(set(block_ids)) == num_blocks
        num_empty = min(num_blocks, len(self.empty))
        evicted = self.cached[: num_blocks - num_empty]
        assert set(block_ids[:num_empty]) <= self.empty
        assert block_ids[num_empty:] == evicted, "the least recently used go first"
        self.empty -= set(block_ids)
        self.cached = self.cached[len(evicted) :]
        for block_id in evicted:
            del self.keys[block_id]
        return block_ids

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_fresh=st.integers(0, 3))
    def grow(self, data: st.DataObject, num_fresh: int) -> None:
        """Append blocks to a table."""
        data.draw(st.sampled_from(self.tables)).extend(self._allocate(num_fresh))

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def register(self, data: st.DataObject, key: BlockHash) -> None:
        """Offer a held block to the cache: the first block of a key keeps it, and so does a keyed block."""
        block_id = data.draw(st.sampled_from([each for table in self.tables for each in table]))
        self.pool.register([block_id], [key])
        if block_id not in self.keys and key not in self.keys.values():
            self.keys[block_id] = key

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give up a table."""
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        held_by_others = {block_id for each in self.tables for block_id in each}
        assert self.pool.frees_any(table) == bool(set(table) - held_by_others)
        self.pool.release(table)
        for block_id in reversed(table):
            if block_id in held_by_others:
                continue
            if block_id in self.keys:
                self.cached.append(block_id)
            else:
                self.empty.add(block_id)

    @precondition(lambda self: self.empty or self.cached)
    @rule(data=st.data())
    def release_what_is_free(self, data: st.DataObject) -> None:
        """Release what nobody holds: our own bug, and seen at once."""
        block_id = data.draw(st.sampled_from(sorted([*self.empty, *self.cached])))
        with pytest.raises(AssertionError):
            self.pool.release([block_id])

    @invariant()
    def check(self) -> None:
        """Compare all that the pool tells."""
        if not hasattr(self, "pool"):
            return
        counts: dict[BlockId, int] = {}
        for table in self.tables:
            for block_id in table:
                counts[block_id] = counts.get(block_id, 0) + 1
        assert self.pool.ref_counts() == counts
        assert self.pool.free_block_ids() == self.empty | set(self.cached)
        assert (self.pool.num_empty, self.pool.num_cached) == (len(self.empty), len(self.cached))
        assert self.pool.num_free + len(counts) == self.num_blocks
        assert self.pool.index() == {key: block_id for block_id, key in self.keys.items()}


def test_block_pool_machine() -> None:
    run_state_machine_as_test(
        BlockPoolMachine,
        settings=settings(
            max_examples=60, stateful_step_count=40, derandomize=True, deadline=None, print_blob=True
        ),
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_block_pool_machine_long() -> None:
    run_state_machine_as_test(
        BlockPoolMachine,
        settings=settings(max_examples=3_000, stateful_step_count=80, deadline=None, print_blob=True),
    )
