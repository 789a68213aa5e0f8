"""Leases: several iterations of a step of decodes that the worker runs without asking again.

Until a lease's last result is folded, a lane's counts of known and scheduled tokens are upper bounds:
the worker may end the lease at any boundary, once a step came that takes over. What it was given and
did not use is taken back then, but for blocks, which the lane's next tokens need. Knows nothing about
other steps.
"""

from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.fitting import can_admit
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import BlockId, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """What the rows of a lease may use."""

    num_tokens: Int64Array
    """Of each row, at least 1."""
    append_lanes: list[int]
    append_block_ids: list[BlockId]


def is_take_over_due(state: SchedulerState) -> bool:
    """Tell whether the next plan has to end the leases in flight instead of waiting for their end."""
    return bool(state.open_leases) and (state.open_leases.must_end or can_admit(state))


def may_lease(state: SchedulerState) -> bool:
    """Tell whether nobody needs the step after a step of decodes to be another."""
    lanes = state.lanes
    if lanes.some_do_not_run_ahead and not (lanes.runs_ahead | (lanes.incarnation == 0)).all():
        return False
    return not can_admit(state)


def grant_lease(state: SchedulerState, rows: Int64Array, *, num_steps: int) -> LeaseGrant | None:
    """Give decode rows the blocks of up to ``num_steps`` tokens: as far as free ones go, never by preempting.

    Returns:
        What each row got; None where no row gets more than one token.
    """
    lanes, block_size = state.lanes, state.limits.block_size
    num_left = lanes.max_total[rows] - lanes.num_known[rows]
    num_free_slots = lanes.num_slots[rows] - lanes.num_scheduled[rows]
    for most in range(min(num_steps, int(num_left.max())), 1, -1):
        num_tokens = np.minimum(num_left, most)
        num_blocks = np.maximum(-((num_free_slots - num_tokens) // block_size), 0)
        block_ids = state.pool.allocate(int(num_blocks.sum()))
        if block_ids is not None:
            append_lanes = np.repeat(rows, num_blocks).tolist()
            for lane, block_id in zip(append_lanes, block_ids, strict=True):
                lanes.block_ids[lane].append(block_id)
            lanes.num_slots[rows] += num_blocks * block_size
            return LeaseGrant(num_tokens=num_tokens, append_lanes=append_lanes, append_block_ids=block_ids)
    return None
