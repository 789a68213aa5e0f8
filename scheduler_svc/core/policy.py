"""Who runs and who gives way: the choices of a step, apart from carrying them out.

Decode rows come first, because each costs one token and delays nobody; what is left of the token
budget goes to prompts in chunks, in order of admission. Knows nothing about plans or the worker.

Source: chunked prefill mixed with decodes as in Sarathi-Serve (Agrawal et al., 2024); preemption of
the latest by recompute as in vLLM.
"""

from collections.abc import Container

import numpy as np

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.lanes import LaneTable
from scheduler_svc.core.types import BoolArray, Int64Array, Lane

MAX_ADMITTED_TOKENS = 2**20
"""A step admits no more requests once those it admits have this many known tokens: all of them travel
with the step, 4 bytes each, and a long prompt out of the cache takes next to nothing of the budget."""


def split_rows(lanes: LaneTable) -> tuple[BoolArray, Int64Array]:
    """Find the lanes that can compute now: those one token short, and those with a chunk to do.

    A lane whose last sample is planned has nothing left to do: a length finish is predicted and
    wastes no row.

    Returns:
        Which lanes decode, and the lanes with a chunk to do in order of admission.
    """
    can_run = lanes.num_known < lanes.max_total
    if lanes.some_do_not_run_ahead:
        can_run &= lanes.runs_ahead | (lanes.num_rows_in_flight == 0)
    is_decode = lanes.num_known - lanes.num_scheduled == 1
    is_decode &= can_run
    prefill_lanes = (can_run ^ is_decode).nonzero()[0]
    return is_decode, lanes.in_admission_order(prefill_lanes) if len(prefill_lanes) else prefill_lanes


def choose_victim(lanes: LaneTable, pool: BlockPool, *, lane: Lane, planned: Container[int]) -> Lane | None:
    """Choose whom to preempt so that ``lane`` can grow.

    The latest-admitted lane, not before ``lane`` itself, whose release frees a block now. Where no
    single release does but all of them would (later lanes share blocks among each other), the latest
    one after ``lane``, so that the next may. An earlier lane never gives way to a later one, so that
    the earliest always goes on.

    Args:
        lanes: all lanes.
        pool: the pool that is out of free blocks.
        lane: the lane in need.
        planned: lanes that have a row in this step already and must keep it.

    Returns:
        The victim, which may be ``lane``; None where ``lane`` must wait.
    """
    order = lanes.admission_order
    position = int(np.flatnonzero(order == lane)[0])
    candidates = [int(i) for i in order[position:][::-1] if i not in planned]
    for candidate in candidates:
        if pool.frees_any(lanes.block_ids[candidate]):
            return Lane(candidate)
    later = [candidate for candidate in candidates if candidate != lane]
    if later and pool.frees_any(*(lanes.block_ids[candidate] for candidate in later)):
        return Lane(later[0])
    return None


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Count the blocks that hold this many tokens."""
    return -(-num_tokens // block_size)
