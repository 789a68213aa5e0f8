"""The order of free blocks, by hand."""

import pytest

from scheduler_svc.core.free_queue import FreeQueue
from scheduler_svc.core.types import BlockId


def _queue(*block_ids: int) -> FreeQueue:
    return FreeQueue(BlockId(i) for i in block_ids)


def test_the_last_empty_block_goes_first() -> None:
    queue = _queue(3, 2, 1)
    queue.pop(1)
    queue.push_empty(BlockId(9))
    assert queue.pop(3) == [9, 2, 3]
    assert len(queue) == 0


def test_cached_blocks_go_after_empty_ones_least_recently_used_first() -> None:
    queue = _queue(1)
    for block_id in (5, 4, 6):
        queue.push_cached([BlockId(block_id)])
    assert (queue.num_empty, queue.num_cached, len(queue)) == (1, 3, 4)
    assert queue.pop(4) == [1, 5, 4, 6]


def test_a_shared_block_leaves_and_comes_back_as_the_most_recently_used() -> None:
    queue = _queue()
    for block_id in (5, 4, 6):
        queue.push_cached([BlockId(block_id)])
    queue.take_cached(BlockId(5))
    assert queue.block_ids() == {4, 6}
    queue.push_cached([BlockId(5)])
    assert queue.pop(3) == [4, 6, 5]


def test_taking_a_block_that_is_not_cached_is_our_own_bug() -> None:
    queue = _queue(1)
    with pytest.raises(KeyError):
        queue.take_cached(BlockId(1))
    assert queue.block_ids() == {1}
