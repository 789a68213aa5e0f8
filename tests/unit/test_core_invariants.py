"""Each invariant of the core can be broken, and is then named."""

from collections.abc import Callable

import pytest

from scheduler_svc.core.invariants import check_invariants
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import BlockHash, BlockId, Incarnation, RequestStatus
from tests.unit.core_steps import LIMITS, fold, make_request, plan_next


def _busy_state() -> SchedulerState:
    """Two requests in lanes 0 and 1 with a row each in flight, a third one waiting."""
    core = Scheduler(LIMITS)
    core.add(make_request("a", [1, 2, 3, 4, 5]))
    core.add(make_request("b", [6, 7, 8]))
    fold(core, plan_next(core), 50, 60)
    plan_next(core)
    core.add(make_request("c", [9]))
    return core._state


def _lose_a_block(state: SchedulerState) -> None:
    state.lanes.block_ids[1].pop()


def _hold_a_free_block(state: SchedulerState) -> None:
    state.pool._free.push_empty(BlockId(1))


def _drop_a_free_block(state: SchedulerState) -> None:
    state.pool._free._empty.pop()


def _free_a_block_twice(state: SchedulerState) -> None:
    state.pool._free.push_empty(BlockId(16))


def _move_a_hash(state: SchedulerState) -> None:
    block_of = next(filter(None, state.pool._blocks_by_byte))
    key, _ = block_of.popitem()
    state.pool._hash_of[1] = None
    block_of[key], state.pool._hash_of[3] = BlockId(3), key
    other = BlockHash(b"y" * 32)
    block_of[other], state.pool._hash_of[1] = BlockId(1), other


def _compute_too_much(state: SchedulerState) -> None:
    state.lanes.num_computed[0] += 9


def _miscount_rows_in_flight(state: SchedulerState) -> None:
    state.lanes.num_rows_in_flight[0] += 1


def _miscount_blocks(state: SchedulerState) -> None:
    state.lanes.num_slots[0] += 1


def _know_more_than_the_limit(state: SchedulerState) -> None:
    state.lanes.num_known[0] = 33


def _mix_up_lanes(state: SchedulerState) -> None:
    state.lanes.incarnation[0] = 7


def _mistake_the_status(state: SchedulerState) -> None:
    state.requests["a"].status = RequestStatus.WAITING


def _forget_a_request(state: SchedulerState) -> None:
    del state.requests["c"]


def _remember_a_late_row_of_nobody(state: SchedulerState) -> None:
    state.late_requests[Incarnation(1)] = state.requests["a"]


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (_lose_a_block, "a block's count equals the tables that hold it"),
        (_hold_a_free_block, "no block is both free and held"),
        (_drop_a_free_block, r"free \+ cached \+ held = pool"),
        (_free_a_block_twice, "no block is free twice"),
        (_compute_too_much, "computed <= scheduled < known"),
        (_miscount_rows_in_flight, "rows in flight are counted"),
        (_miscount_blocks, "a table's length is counted"),
        (_know_more_than_the_limit, "tokens stay in bounds"),
        (_mix_up_lanes, "a lane and its request agree"),
        (_mistake_the_status, "lanes hold running requests"),
        (_forget_a_request, "each in one place"),
        (_remember_a_late_row_of_nobody, "late rows have requests"),
        (_move_a_hash, "a cached hash points at a block with that content"),
    ],
)
def test_a_broken_invariant_is_named(break_it: Callable[[SchedulerState], None], message: str) -> None:
    state = _busy_state()
    check_invariants(state)
    break_it(state)
    with pytest.raises(AssertionError, match=message):
        check_invariants(state)
