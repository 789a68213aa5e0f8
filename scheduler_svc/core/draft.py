"""A step being planned, and how it becomes a plan in flight.

Committing counts the step's rows as if they had run already. Knows nothing about why a row, a block or
an admission is in the draft.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from scheduler_svc.core.plan import Admission, StepPlan
from scheduler_svc.core.state import InFlightStep, SchedulerState
from scheduler_svc.core.types import BlockId, Int32Array, Int64Array

_NO_LANES: Int64Array = np.empty(0, np.int64)


class Draft:
    """A step being planned."""

    def __init__(self, budget_left: int) -> None:
        self.budget_left = budget_left
        self.decode_lanes = _NO_LANES
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
        """Add the row of a lane that computes part of its known tokens."""
        self.chunk_lanes.append(lane)
        self.chunk_num_tokens.append(num_tokens)
        self.chunk_samples.append(samples)
        self.budget_left -= num_tokens

    def add_blocks(self, lane: int, block_ids: list[BlockId]) -> None:
        """Add blocks that a lane was given."""
        self.append_lanes.extend([lane] * len(block_ids))
        self.append_block_ids.extend(block_ids)


def int32_array(values: Sequence[int]) -> Int32Array:
    """Make an array, for half of what numpy takes to convert a list."""
    return np.frombuffer(array("i", values), np.int32)


def commit(state: SchedulerState, draft: Draft) -> StepPlan | None:
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
        released_lanes=int32_array(state.pending_releases),
        admissions=tuple(draft.admissions),
        append_lanes=int32_array(draft.append_lanes),
        append_block_ids=int32_array(draft.append_block_ids),
        row_lanes=row_lanes.astype(np.int32),
        row_num_tokens=num_tokens,
        row_samples=samples,
        num_steps=1 if draft.lease_num_tokens is None else int(draft.lease_num_tokens.max()),
        takes_over=state.open_leases.must_end,
    )
    _note_in_flight(state, draft, plan, row_lanes=row_lanes)
    state.unregistered += draft.chunk_lanes
    return plan


def _note_in_flight(state: SchedulerState, draft: Draft, plan: StepPlan, *, row_lanes: Int64Array) -> None:
    """Count a plan's rows as scheduled and in flight."""
    lanes = state.lanes
    num_rows = np.zeros(len(lanes.incarnation), np.int64)
    num_rows[row_lanes] = 1
    num_tokens = num_rows.copy()
    if draft.chunk_lanes or draft.lease_num_tokens is not None:
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
