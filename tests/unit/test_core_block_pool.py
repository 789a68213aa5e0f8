"""The block pool's counts, cache and eviction, by hand."""

import pytest

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.types import BlockHash, BlockId

KEYS = [BlockHash(bytes([i]) * 32) for i in range(8)]


def _allocate(pool: BlockPool, num_blocks: int) -> list[BlockId]:
    block_ids = pool.allocate(num_blocks)
    assert block_ids is not None
    return block_ids


def test_ids_start_at_1_and_too_many_are_an_answer_that_changes_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    assert _allocate(pool, 3) == [1, 2, 3]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []
    assert pool.ref_counts() == {1: 1, 2: 1, 3: 1}


def test_a_block_without_a_key_is_empty_again_when_released() -> None:
    pool = BlockPool(2)
    pool.release(_allocate(pool, 2))
    assert (pool.num_free, pool.num_empty, pool.num_cached) == (2, 2, 0)
    assert pool.ref_counts() == {}


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    (block_id,) = _allocate(pool, 1)
    pool.register([block_id], [KEYS[0]])
    pool.share([block_id])
    assert pool.ref_counts() == {block_id: 2}
    assert not pool.frees_any([block_id])
    pool.release([block_id])
    assert pool.frees_any([block_id])
    assert pool.num_cached == 0
    pool.release([block_id])
    assert (pool.num_empty, pool.num_cached) == (1, 1)


def test_match_stops_at_the_first_miss_and_changes_nothing() -> None:
    pool = BlockPool(4)
    blocks = _allocate(pool, 3)
    for block_id, key in zip(blocks, (KEYS[0], KEYS[1], KEYS[3]), strict=True):
        pool.register([block_id], [key])
    assert pool.match(KEYS[:4]) == blocks[:2]
    assert pool.match(KEYS[1:2]) == blocks[1:2]
    assert pool.match([KEYS[5], KEYS[0]]) == []
    assert pool.ref_counts() == {1: 1, 2: 1, 3: 1}


def test_sharing_takes_free_cached_blocks_out_of_the_free_ones() -> None:
    pool = BlockPool(3)
    blocks = _allocate(pool, 2)
    pool.register([blocks[0]], [KEYS[0]])
    pool.register([blocks[1]], [KEYS[1]])
    pool.release(blocks[1:])
    assert pool.num_free_among(blocks) == 1
    pool.share(blocks)
    assert pool.num_free == 1
    assert pool.ref_counts() == {1: 2, 2: 1}


def test_a_table_is_evicted_from_its_end_and_its_key_goes_with_the_block() -> None:
    pool = BlockPool(3)
    blocks = _allocate(pool, 3)
    for block_id, key in zip(blocks, KEYS, strict=False):
        pool.register([block_id], [key])
    pool.release(blocks)
    assert _allocate(pool, 1) == [blocks[2]]
    assert pool.match(KEYS[:3]) == blocks[:2]
    assert _allocate(pool, 1) == [blocks[1]]
    assert pool.match(KEYS[:3]) == blocks[:1]
    assert pool.index() == {KEYS[0]: blocks[0]}


def test_of_two_identical_blocks_the_first_keeps_the_key() -> None:
    pool = BlockPool(2)
    first, second = _allocate(pool, 2)
    pool.register([first], [KEYS[0]])
    pool.register([second], [KEYS[0]])
    assert pool.match(KEYS[:1]) == [first]
    pool.release([second])
    assert pool.num_cached == 0
    pool.release([first])
    assert pool.num_cached == 1


def test_a_released_but_cached_block_is_used_last() -> None:
    pool = BlockPool(2)
    first, second = _allocate(pool, 2)
    pool.register([first], [KEYS[0]])
    pool.release([first])
    pool.release([second])
    assert _allocate(pool, 2) == [second, first]
    assert pool.index() == {}


def test_sharing_releasing_or_registering_what_nobody_holds_is_our_own_bug() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="block 1 is released but not held"):
        pool.release([BlockId(1)])
    with pytest.raises(AssertionError, match="block 1 is shared but not cached"):
        pool.share([BlockId(1)])
    with pytest.raises(AssertionError, match=r"blocks \[1\] is registered but not held"):
        pool.register([BlockId(1)], [KEYS[0]])
