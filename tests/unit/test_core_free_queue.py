"""The order of free blocks, by hand."""

from scheduler_svc.core.free_queue import MAX_STALE_OF_FEW, FreeQueue
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


def test_blocks_shared_again_and_again_keep_their_order_and_leave_little_behind() -> None:
    queue = _queue()
    queue.push_cached([BlockId(i) for i in (5, 4, 6)])
    for _ in range(3 * MAX_STALE_OF_FEW):
        for block_id in (BlockId(5), BlockId(4)):
            queue.take_cached(block_id)
        queue.push_cached([BlockId(5), BlockId(4)])
        assert (len(queue), len(queue._cached) < 2 * MAX_STALE_OF_FEW) == (3, True)
    queue.take_cached(BlockId(5))
    assert queue.block_ids() == {4, 6}
    assert queue.pop(2) == [6, 4]
    assert len(queue) == 0
