"""Carry out the choices of one step: grow tables, preempt, admit, and write the plan.

Changes the state as if the step had run already, so that the next step can be planned before this
one's result is in. Knows nothing about results.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from scheduler_svc.core.epochs import note_start
from scheduler_svc.core.fitting import cached_if_fits, is_startable
from scheduler_svc.core.leasing import grant_lease, is_take_over_due, may_lease
from scheduler_svc.core.plan import Admission, StepPlan
from scheduler_svc.core.policy import MAX_ADMITTED_TOKENS, choose_victim, num_blocks_for, split_rows
from scheduler_svc.core.state import InFlightStep, SchedulerState
from scheduler_svc.core.types import (
    BlockId,
    BoolArray,
    Incarnation,
    Int32Array,
    Int64Array,
    Lane,
    Request,
    RequestStatus,
)


class _Draft:
    """A step being planned."""

    def __init__(self, budget_left: int) -> None:
        self.budget_left = budget_left
        self.decode_lanes: Int64Array
        self.lease_num_tokens: Int64Array | None = None
        """Of a lease: the most tokens of each decode row."""
        self.chunk_lanes: list[int] = []
        self.chunk_num_tokens: list[int] = []
        self.chunk_samples: list[bool] = []
        self.append_lanes: list[int] = []
        self.append_block_ids: list[BlockId] = []
        self.admissions: list[Admission] = []
        self.num_admitted_tokens = 0
        self.has_preempted = False

    def add_chunk(self, lane: int, num_tokens: int, *, samples: bool) -> None:
        self.chunk_lanes.append(lane)
        self.chunk_num_tokens.append(num_tokens)
        self.chunk_samples.append(samples)
        self.budget_left -= num_tokens

    def add_blocks(self, lane: int, block_ids: list[BlockId]) -> None:
        self.append_lanes.extend([lane] * len(block_ids))
        self.append_block_ids.extend(block_ids)


def plan_step(state: SchedulerState, num_steps: int) -> StepPlan | None:
    """Plan one step, or give None where there is nothing to run and nothing to release."""
    draft = _Draft(budget_left=state.limits.max_num_batched_tokens)
    if is_take_over_due(state):
        state.open_leases.ask_end()
    is_decode, prefill_lanes = split_rows(state.lanes)
    num_waiting_rows = int(np.count_nonzero(is_decode)) + len(prefill_lanes) if num_steps > 1 else 0
    draft.decode_lanes = _grow_decode_lanes(state, draft, is_decode).nonzero()[0]
    draft.budget_left -= len(draft.decode_lanes)
    for lane in prefill_lanes.tolist():
        # A decode row's growth may have preempted this lane.
        if state.lanes.incarnation[lane] and draft.budget_left > 0:
            _plan_chunk(state, draft, Lane(lane))
    # What a preemption freed is for those who run: admitting into it would only preempt again.
    if not draft.has_preempted:
        _admit(state, draft)
    if 0 < num_waiting_rows == len(draft.decode_lanes):
        _plan_lease(state, draft, num_steps)
    return _commit(state, draft)


def _grow_decode_lanes(state: SchedulerState, draft: _Draft, is_decode: BoolArray) -> BoolArray:
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


def _grow_by_preempting(state: SchedulerState, draft: _Draft, lane: Lane) -> bool:
    """Give a lane one block though the pool is short; False where it was preempted or must wait."""
    if not state.lanes.incarnation[lane] or not _make_room(state, draft, lane, planned=()):
        return False
    block_ids = state.pool.allocate(1)
    assert block_ids is not None, "room was made"
    state.lanes.grow(lane, block_ids, block_size=state.limits.block_size)
    draft.add_blocks(lane, block_ids)
    return True


def _make_room(state: SchedulerState, draft: _Draft, lane: Lane, *, planned: tuple[int, ...]) -> bool:
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


def _plan_lease(state: SchedulerState, draft: _Draft, num_steps: int) -> None:
    """Make a lease of a step of decodes, where nobody needs the next step to be another."""
    if draft.chunk_lanes or draft.has_preempted or not may_lease(state):
        return
    grant = grant_lease(state, draft.decode_lanes, num_steps=num_steps)
    if grant is not None:
        draft.lease_num_tokens = grant.num_tokens
        draft.append_lanes += grant.append_lanes
        draft.append_block_ids += grant.append_block_ids


def _plan_chunk(state: SchedulerState, draft: _Draft, lane: Lane) -> None:
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


def _admit(state: SchedulerState, draft: _Draft) -> None:
    """Start queued requests in order, until one does not fit."""
    while (
        draft.budget_left > 0
        and draft.num_admitted_tokens < MAX_ADMITTED_TOKENS
        and state.lanes.has_free_lane
    ):
        request = state.queues.peek()
        if request is None or not is_startable(state, request) or not _try_admit(state, draft, request):
            return


def _try_admit(state: SchedulerState, draft: _Draft, request: Request) -> bool:
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
        block_ids=_int32(state.lanes.block_ids[request.lane]),
        max_total_tokens=request.max_total_tokens,
        sampling=request.sampling,
        owner=request.owner,
        handle=request.handle,
        is_first=is_first,
    )


def _int32(values: Sequence[int]) -> Int32Array:
    """Make an array, for half of what numpy takes to convert a list."""
    return np.frombuffer(array("i", values), np.int32)


def _commit(state: SchedulerState, draft: _Draft) -> StepPlan | None:
    """Count the draft's rows as scheduled and in flight, and freeze it."""
    num_decode, num_chunks = len(draft.decode_lanes), len(draft.chunk_lanes)
    if not (num_decode or num_chunks or state.pending_releases):
        return None
    row_lanes = draft.decode_lanes
    num_tokens = state.lanes.ones[: num_decode + num_chunks].copy()
    samples = num_tokens.astype(np.bool_)
    if num_chunks:
        row_lanes = np.concatenate([row_lanes, draft.chunk_lanes])
        num_tokens[num_decode:] = draft.chunk_num_tokens
        samples[num_decode:] = draft.chunk_samples
        # Prompts are never left to wait for a lease's end.
        state.open_leases.ask_end()
    elif draft.lease_num_tokens is not None:
        num_tokens = draft.lease_num_tokens.astype(np.int32)
    plan = StepPlan(
        step_id=state.next_step_id,
        released_lanes=_int32(state.pending_releases),
        admissions=tuple(draft.admissions),
        append_lanes=_int32(draft.append_lanes),
        append_block_ids=_int32(draft.append_block_ids),
        row_lanes=row_lanes.astype(np.int32),
        row_num_tokens=num_tokens,
        row_samples=samples,
        num_steps=1 if draft.lease_num_tokens is None else int(draft.lease_num_tokens.max()),
        takes_over=state.open_leases.must_end,
    )
    _note_in_flight(state, draft, plan, row_lanes=row_lanes)
    _register_prompt_blocks(state, draft.chunk_lanes)
    return plan


def _note_in_flight(state: SchedulerState, draft: _Draft, plan: StepPlan, *, row_lanes: Int64Array) -> None:
    """Count a plan's rows as scheduled and in flight."""
    lanes = state.lanes
    num_rows = np.zeros(len(lanes.incarnation), np.int64)
    num_rows[row_lanes] = 1
    num_tokens = num_rows.copy()
    if draft.lease_num_tokens is not None:
        num_tokens[row_lanes] = draft.lease_num_tokens
    for lane, num_chunk_tokens in zip(draft.chunk_lanes, draft.chunk_num_tokens, strict=True):
        num_tokens[lane] = num_chunk_tokens
    if plan.num_steps > 1:
        num_tokens[row_lanes] = plan.row_num_tokens
    all_sample = all(draft.chunk_samples)
    sample_lanes = row_lanes if all_sample else row_lanes[plan.row_samples]
    lanes.num_scheduled += num_tokens
    lanes.num_rows_in_flight += num_rows
    if all_sample:
        lanes.num_known += num_tokens if plan.num_steps > 1 else num_rows
    else:
        lanes.num_known[sample_lanes] += 1
    state.in_flight.append(
        InFlightStep(
            step_id=plan.step_id,
            num_rows=num_rows,
            num_tokens=num_tokens,
            incarnations=lanes.incarnation * num_rows,
            sample_lanes=sample_lanes,
            num_steps=plan.num_steps,
        )
    )
    if plan.takes_over:
        state.open_leases.take_over()
    if plan.num_steps > 1:
        state.open_leases.add(plan.step_id)
    state.next_step_id += 1
    state.pending_releases = []


def _register_prompt_blocks(state: SchedulerState, chunk_lanes: list[int]) -> None:
    """Offer the blocks that this step fills to the next plan; the worker runs steps in order."""
    lanes, block_size = state.lanes, state.limits.block_size
    for lane in chunk_lanes:
        # Of a row that samples, the new token is not known yet: only blocks of known tokens count.
        num_tokens = min(int(lanes.num_scheduled[lane]), int(lanes.num_folded[lane]))
        state.register_blocks(lane, num_tokens // block_size)
