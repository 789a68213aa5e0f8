"""What must hold between any two calls of the core, checked from scratch.

For tests and the ``--check-invariants`` flag: it looks at everything each time, so it is slow. Knows
nothing about how the state came about.
"""

from collections import Counter

from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import RequestStatus


def check_invariants(state: SchedulerState) -> None:
    """Raise AssertionError, naming the invariant, if one is broken."""
    _check_pool(state)
    _check_prefix_cache(state)
    _check_lanes(state)
    _check_requests(state)
    if not state.requests:
        _check_idle(state)


def _check_pool(state: SchedulerState) -> None:
    held = Counter(block_id for table in state.lanes.block_ids for block_id in table)
    assert state.pool.ref_counts() == dict(held), "a block's count equals the tables that hold it"
    free = state.pool.free_block_ids()
    assert len(free) == state.pool.num_free, "no block is free twice"
    assert not free & held.keys(), "no block is both free and held"
    assert free | held.keys() == set(range(1, state.pool.num_blocks + 1)), "free + cached + held = pool"


def _check_prefix_cache(state: SchedulerState) -> None:
    index = state.pool.index()
    assert len(set(index.values())) == len(index), "a block has one hash"
    for lane in state.lanes.admission_order.tolist():
        request, table = state.lanes.request(lane), state.lanes.block_ids[lane]
        for block_hash, block_id in zip(request.block_hashes, table, strict=False):
            # Of two identical blocks the first keeps the key, so a table may hold the second.
            assert index.get(block_hash, block_id) == block_id or block_id not in index.values(), (
                "a cached hash points at a block with that content"
            )


def _check_lanes(state: SchedulerState) -> None:
    lanes, block_size = state.lanes, state.limits.block_size
    in_flight = Counter(int(i) for step in state.in_flight for i in step.incarnations)
    to_come = _tokens_to_come(state)
    write_slots: set[tuple[int, int]] = set()
    for lane in lanes.admission_order.tolist():
        request = lanes.request(lane)
        computed, scheduled = int(lanes.num_computed[lane]), int(lanes.num_scheduled[lane])
        folded, known = int(lanes.num_folded[lane]), int(lanes.num_known[lane])
        assert request.lane == lane, "a lane and its request agree"
        assert request.incarnation == lanes.incarnation[lane], "a lane and its request agree"
        assert request.num_prompt_tokens <= folded <= known <= request.max_total_tokens, (
            "tokens stay in bounds"
        )
        assert computed <= scheduled < known, "computed <= scheduled < known"
        assert known - folded == to_come[request.incarnation], "known tokens are folded or in flight"
        num_slots = len(lanes.block_ids[lane]) * block_size
        assert num_slots == lanes.num_slots[lane], "a table's length is counted"
        assert scheduled <= num_slots, "every scheduled token has a slot"
        assert lanes.num_rows_in_flight[lane] == in_flight[request.incarnation], "rows in flight are counted"
        slots = {
            (lanes.block_ids[lane][position // block_size], position % block_size)
            for position in range(computed, scheduled)
        }
        assert not write_slots & slots, "slots being written are distinct"
        write_slots |= slots


def _tokens_to_come(state: SchedulerState) -> Counter[int]:
    """Count the tokens that the rows in flight of each incarnation sample at most."""
    num_told, to_come = state.num_iterations_folded, Counter[int]()
    for step in state.in_flight:
        for lane in step.sample_lanes.tolist():
            num_granted = int(step.num_tokens[lane]) if step.num_steps > 1 else 1
            to_come[int(step.incarnations[lane])] += max(num_granted - num_told, 0)
        num_told = 0
    return to_come


def _check_requests(state: SchedulerState) -> None:
    queued = state.queues.requests()
    running = [state.lanes.request(lane) for lane in state.lanes.admission_order.tolist()]
    assert all(request.status is RequestStatus.RUNNING for request in running), "lanes hold running requests"
    live = [*queued, *running]
    assert len({id(request) for request in live}) == len(live) == len(state.requests), "each in one place"
    assert all(state.requests[request.request_id] is request for request in live), "live ones are indexed"
    late = [request for request in queued if request.num_late_rows]
    assert {request.incarnation for request in late} == state.late_requests.keys(), "late rows have requests"


def _check_idle(state: SchedulerState) -> None:
    assert not state.pool.ref_counts(), "when idle, no block is held"
    assert not state.lanes.num_running, "when idle, no lane is held"
    assert not state.late_requests, "when idle, nothing is late"
