"""Carry out the choices of one step: grow tables, preempt, admit, and draft the plan.

Changes the state as if the step had run already, so that the next step can be planned before this
one's result is in. Knows nothing about results.
"""

import numpy as np

from scheduler_svc.core.draft import Draft, commit, int32_array
from scheduler_svc.core.epochs import note_start
from scheduler_svc.core.fitting import cached_if_fits, is_startable
from scheduler_svc.core.leasing import grant_lease, is_take_over_due, may_lease
from scheduler_svc.core.plan import Admission, StepPlan
from scheduler_svc.core.policy import MAX_ADMITTED_TOKENS, choose_victim, num_blocks_for, split_rows
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import (
    BlockId,
    BoolArray,
    Incarnation,
    Lane,
    Request,
    RequestStatus,
)


def plan_step(state: SchedulerState, num_steps: int) -> StepPlan | None:
    """Plan one step, or give None where there is nothing to run and nothing to release."""
    draft = Draft(budget_left=state.limits.max_num_batched_tokens)
    if is_take_over_due(state):
        state.open_leases.ask_end()
    # A worker without a request waits for this plan.
    num_rows = _plan_rows(state, draft) if state.lanes.num_running else 0
    # What a preemption freed is for those who run: admitting into it would only preempt again.
    if not draft.has_preempted:
        _admit(state, draft)
    if num_steps > 1 and 0 < num_rows == len(draft.decode_lanes):
        _plan_lease(state, draft, num_steps)
    return commit(state, draft)


def _plan_rows(state: SchedulerState, draft: Draft) -> int:
    """Plan rows of the requests that run; return how many could compute."""
    is_decode, prefill_lanes = split_rows(state.lanes)
    num_rows = int(np.count_nonzero(is_decode)) + len(prefill_lanes)
    draft.decode_lanes = _grow_decode_lanes(state, draft, is_decode).nonzero()[0]
    draft.budget_left -= len(draft.decode_lanes)
    for lane in prefill_lanes.tolist():
        # A decode row's growth may have preempted this lane.
        if state.lanes.incarnation[lane] and draft.budget_left > 0:
            _plan_chunk(state, draft, Lane(lane))
    return num_rows


def _grow_decode_lanes(state: SchedulerState, draft: Draft, is_decode: BoolArray) -> BoolArray:
    """Give each decode row the block it needs; return which lanes can run."""
    lanes, block_size = state.lanes, state.limits.block_size
    growing = (is_decode & (lanes.num_scheduled >= lanes.num_slots)).nonzero()[0]
    block_ids = state.pool.allocate(len(growing))
    if block_ids is not None:
        tables, growing_lanes = lanes.block_ids, growing.tolist()
        for lane, block_id in zip(growing_lanes, block_ids, strict=True):
            tables[lane].append(block_id)
        lanes.num_slots[growing] += block_size
        draft.append_lanes.extend(growing_lanes)
        draft.append_block_ids.extend(block_ids)
        return is_decode
    for lane in lanes.in_admission_order(growing).tolist():
        if not _grow_by_preempting(state, draft, Lane(lane)):
            is_decode[lane] = False
    is_decode &= lanes.incarnation != 0
    return is_decode


def _grow_by_preempting(state: SchedulerState, draft: Draft, lane: Lane) -> bool:
    """Give a lane one block though the pool is short; False where it was preempted or must wait."""
    if not state.lanes.incarnation[lane] or not _make_room(state, draft, lane, planned=()):
        return False
    block_ids = state.pool.allocate(1)
    assert block_ids is not None, "room was made"
    state.lanes.grow(lane, block_ids, block_size=state.limits.block_size)
    draft.add_blocks(lane, block_ids)
    return True


def _make_room(state: SchedulerState, draft: Draft, lane: Lane, *, planned: tuple[int, ...]) -> bool:
    """Preempt until a block is free; False where ``lane`` itself gave way or must wait."""
    while state.pool.num_free == 0:
        victim = choose_victim(state.lanes, state.pool, lane=lane, planned=planned)
        if victim is None:
            return False
        state.preempt(victim)
        draft.has_preempted = True
        if victim == lane:
            return False
    return True


def _plan_lease(state: SchedulerState, draft: Draft, num_steps: int) -> None:
    """Make a lease of a step of decodes, where nobody needs the next step to be another."""
    if draft.chunk_lanes or draft.has_preempted or not may_lease(state):
        return
    grant = grant_lease(state, draft.decode_lanes, num_steps=num_steps)
    if grant is not None:
        draft.lease_num_tokens = grant.num_tokens
        draft.append_lanes += grant.append_lanes
        draft.append_block_ids += grant.append_block_ids


def _plan_chunk(state: SchedulerState, draft: Draft, lane: Lane) -> None:
    """Plan the next chunk of a prompt that is under way, as much of it as there is room for."""
    lanes, block_size = state.lanes, state.limits.block_size
    num_scheduled, num_known = int(lanes.num_scheduled[lane]), int(lanes.num_known[lane])
    num_blocks = len(lanes.block_ids[lane])
    if num_blocks * block_size == num_scheduled:
        # This lane keeps what it has and waits rather than take a row from a planned one.
        planned = (*draft.decode_lanes.tolist(), *draft.chunk_lanes, lane)
        if not _make_room(state, draft, lane, planned=planned):
            return
    num_room = (num_blocks + state.pool.num_free) * block_size - num_scheduled
    num_tokens = min(num_known - num_scheduled, draft.budget_left, num_room)
    block_ids = state.pool.allocate(
        max(0, num_blocks_for(num_scheduled + num_tokens, block_size) - num_blocks)
    )
    assert block_ids is not None, "the chunk was cut to the room there is"
    lanes.grow(lane, block_ids, block_size=block_size)
    draft.add_blocks(lane, block_ids)
    draft.add_chunk(lane, num_tokens, samples=num_scheduled + num_tokens == num_known)


def _admit(state: SchedulerState, draft: Draft) -> None:
    """Start queued requests in order, until one does not fit."""
    while (
        draft.budget_left > 0
        and draft.num_admitted_tokens < MAX_ADMITTED_TOKENS
        and state.lanes.has_free_lane
    ):
        request = state.queues.peek()
        if request is None or not is_startable(state, request) or not _try_admit(state, draft, request):
            return


def _try_admit(state: SchedulerState, draft: Draft, request: Request) -> bool:
    """Give a lane to this request, if its known tokens fit beside those that run."""
    cached = cached_if_fits(state, request)
    if cached is None:
        return False
    pool, block_size = state.pool, state.limits.block_size
    num_known, num_cached_tokens = request.num_tokens, len(cached) * block_size
    num_tokens = min(num_known - num_cached_tokens, draft.budget_left)
    pool.share(cached)
    block_ids = pool.allocate(num_blocks_for(num_cached_tokens + num_tokens, block_size) - len(cached))
    assert block_ids is not None, "the room was checked"
    is_first = not request.incarnation
    _occupy(state, request, [*cached, *block_ids], num_cached_tokens=num_cached_tokens)
    draft.admissions.append(_admission(state, request, num_cached_tokens, is_first=is_first))
    draft.num_admitted_tokens += num_known
    draft.add_chunk(request.lane, num_tokens, samples=num_cached_tokens + num_tokens == num_known)
    return True


def _occupy(state: SchedulerState, request: Request, table: list[BlockId], *, num_cached_tokens: int) -> None:
    """Move a queued request to a lane."""
    state.queues.remove(request)
    state.num_admissions += 1
    if not request.incarnation:
        # A request that comes with output finds that in the cache, too.
        request.num_prefix_hit_tokens = min(num_cached_tokens, request.num_prompt_tokens)
        state.totals.num_cached_tokens += request.num_prefix_hit_tokens
    request.incarnation = Incarnation(state.num_admissions)
    request.status = RequestStatus.RUNNING
    request.lane = state.lanes.occupy(
        request, table, num_cached_tokens=num_cached_tokens, block_size=state.limits.block_size
    )
    note_start(state, request)


def _admission(
    state: SchedulerState, request: Request, num_cached_tokens: int, *, is_first: bool
) -> Admission:
    """Tell the worker all it must know of a request."""
    return Admission(
        lane=request.lane,
        incarnation=request.incarnation,
        token_ids=request.token_ids,
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=num_cached_tokens,
        block_ids=int32_array(state.lanes.block_ids[request.lane]),
        max_total_tokens=request.max_total_tokens,
        sampling=request.sampling,
        owner=request.owner,
        handle=request.handle,
        is_first=is_first,
    )
