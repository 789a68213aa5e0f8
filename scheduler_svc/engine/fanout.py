"""Split what a step tells by owner, with numpy: a step of 256 rows costs microseconds.

Knows nothing about streams or protobuf.
"""

import numpy as np

from scheduler_svc.core.plan import Logprobs, StepOutputs
from scheduler_svc.core.types import BoolArray, Int32Array
from scheduler_svc.engine.values import OwnerOutputs

NO_INT32: Int32Array = np.empty(0, np.int32)


def tokens_by_owner(outputs: StepOutputs) -> dict[int, OwnerOutputs]:
    """Give each owner its tokens and their log-probabilities, in the step's order."""
    owners = outputs.owners
    if not len(owners):
        return {}
    first = int(owners[0])
    if (owners == first).all():
        # One front end is the usual case, and needs no copies.
        return {first: _select(outputs, None)}
    return {int(owner): _select(outputs, owners == owner) for owner in np.unique(owners)}


def _select(outputs: StepOutputs, mask: BoolArray | None) -> OwnerOutputs:
    handles = outputs.handles.astype(np.int32)
    if mask is None:
        return OwnerOutputs(handles=handles, token_ids=outputs.token_ids, logprobs=outputs.logprobs)
    return OwnerOutputs(
        handles=handles[mask],
        token_ids=outputs.token_ids[mask],
        logprobs=None if outputs.logprobs is None else _select_logprobs(outputs.logprobs, mask),
    )


def _select_logprobs(logprobs: Logprobs, mask: BoolArray) -> Logprobs | None:
    """Keep the ragged entries of the chosen tokens; None where they have none."""
    entry_mask = np.repeat(mask, logprobs.counts)
    if not entry_mask.any():
        return None
    return Logprobs(
        counts=logprobs.counts[mask],
        token_ids=logprobs.token_ids[entry_mask],
        values=logprobs.values[entry_mask],
    )
