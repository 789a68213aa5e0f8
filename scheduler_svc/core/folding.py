"""Fold one step's result back: append tokens and end requests.

Rows are matched through the FIFO of steps in flight, by lane and incarnation; a row whose request
has ended is dropped, one whose request was preempted still counts. Knows nothing about planning.
"""

import numpy as np

from scheduler_svc.core.plan import FinishedRequest, Logprobs, StepOutputs, StepResult
from scheduler_svc.core.state import InFlightStep, SchedulerState
from scheduler_svc.core.types import BoolArray, FinishReason, Incarnation, Int32Array, Int64Array, Request


def fold_result(state: SchedulerState, result: StepResult) -> StepOutputs:
    """Fold the oldest step in flight.

    Returns:
        The tokens that count, with their owners, and the requests that ended with them.
    """
    assert state.in_flight, f"step {result.step_id} has a result but nothing is in flight"
    step = state.in_flight.popleft()
    assert step.step_id == result.step_id, f"result of step {result.step_id}, expected {step.step_id}"
    assert len(result.token_ids) == step.num_samples, "one token for each sampling row"
    lanes = state.lanes
    is_live = lanes.incarnation[step.lanes] == step.incarnations
    live_lanes = step.lanes[is_live]
    lanes.num_computed[live_lanes] += step.num_tokens[is_live]
    lanes.num_rows_in_flight[live_lanes] -= 1

    kept, token_lanes = _kept_tokens(step, is_live)
    token_ids = result.token_ids[kept]
    owners, handles = lanes.owner[token_lanes], lanes.handle[token_lanes]
    is_stop, is_length = _append_tokens(state, token_lanes, token_ids)
    finished = _end_lanes(state, token_lanes, token_ids, is_stop=is_stop, is_length=is_length)

    if state.late_requests and len(live_lanes) < len(step.lanes):
        late = _fold_late_rows(state, step, result.token_ids, is_live=is_live)
        kept = np.concatenate([kept, np.array(late.indices, np.int64)])
        token_ids = result.token_ids[kept]
        owners = np.concatenate([owners, np.array(late.owners, np.int32)])
        handles = np.concatenate([handles, np.array(late.handles, np.int64)])
        finished += late.finished
    state.totals.num_output_tokens += len(token_ids)
    return StepOutputs(
        owners=owners,
        handles=handles,
        token_ids=token_ids,
        logprobs=_select(result.logprobs, kept),
        finished=tuple(finished),
    )


def _kept_tokens(step: InFlightStep, is_live: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Find the tokens whose request still holds its lane: their indices in the result, and their lanes."""
    if step.all_sample:
        kept = is_live.nonzero()[0]
        return kept, step.lanes[kept]
    row_of_token = step.samples.nonzero()[0]
    kept = is_live[row_of_token].nonzero()[0]
    return kept, step.lanes[row_of_token[kept]]


def _append_tokens(
    state: SchedulerState, lanes_of_tokens: Int64Array, token_ids: Int32Array
) -> tuple[BoolArray, BoolArray]:
    """Append each lane's new token; tell which of them stop their request, and which reach its end."""
    lanes = state.lanes
    positions = lanes.num_folded[lanes_of_tokens]
    lanes.num_folded[lanes_of_tokens] = positions + 1
    lanes.token_ids[lanes_of_tokens, positions] = token_ids
    is_stop = (lanes.stop_ids[: lanes.num_stop_columns, lanes_of_tokens] == token_ids).any(axis=0)
    if lanes.some_have_many_stops:
        for index in np.flatnonzero(lanes.has_many_stops[lanes_of_tokens]).tolist():
            request = lanes.request(lanes_of_tokens[index])
            is_stop[index] = token_ids[index] in request.sampling.stop_token_ids
    is_stop &= positions >= lanes.stops_from[lanes_of_tokens]
    return is_stop, positions + 1 >= lanes.max_total[lanes_of_tokens]


def _end_lanes(
    state: SchedulerState,
    lanes_of_tokens: Int64Array,
    token_ids: Int32Array,
    *,
    is_stop: BoolArray,
    is_length: BoolArray,
) -> list[FinishedRequest]:
    """End the requests whose new token stops them or is their last."""
    finished = []
    for index in (is_stop | is_length).nonzero()[0].tolist():
        request = state.lanes.request(lanes_of_tokens[index])
        finished.append(_end(state, request, int(token_ids[index]), is_stop=bool(is_stop[index])))
    return finished


def _end(state: SchedulerState, request: Request, token_id: int, *, is_stop: bool) -> FinishedRequest:
    if is_stop:
        return state.end(request, FinishReason.STOP_TOKEN, matched_stop_token_id=token_id)
    return state.end(request, FinishReason.LENGTH)


class _LateOutputs:
    """Tokens of requests that were preempted while their rows were in flight."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.owners: list[int] = []
        self.handles: list[int] = []
        self.finished: list[FinishedRequest] = []


def _fold_late_rows(
    state: SchedulerState, step: InFlightStep, token_ids: Int32Array, *, is_live: BoolArray
) -> _LateOutputs:
    """Fold the rows whose lane was taken away meanwhile."""
    late = _LateOutputs()
    token_of_row = np.cumsum(step.samples) - 1
    for row in np.flatnonzero(~is_live).tolist():
        incarnation = Incarnation(int(step.incarnations[row]))
        request = state.late_requests.get(incarnation)
        if request is None:
            continue  # the request has ended: its row is dropped
        request.num_late_rows -= 1
        if not request.num_late_rows:
            del state.late_requests[incarnation]
        if step.samples[row]:
            index = int(token_of_row[row])
            late.indices.append(index)
            late.owners.append(request.owner)
            late.handles.append(request.handle)
            late.finished += _append_late_token(state, request, int(token_ids[index]))
    return late


def _append_late_token(state: SchedulerState, request: Request, token_id: int) -> list[FinishedRequest]:
    """Append a token to a preempted request, which may end with it."""
    position = request.num_tokens
    request.token_ids = np.append(request.token_ids, np.int32(token_id))
    sampling = request.sampling
    is_stop = (
        token_id in sampling.stop_token_ids and position >= request.num_prompt_tokens + sampling.min_tokens
    )
    if is_stop or position + 1 >= request.max_total_tokens:
        return [_end(state, request, token_id, is_stop=is_stop)]
    return []


def _select(logprobs: Logprobs | None, indices: Int64Array) -> Logprobs | None:
    """Keep the entries of the tokens at ``indices``."""
    if logprobs is None or not logprobs.counts.sum():
        return None
    ends = np.cumsum(logprobs.counts)
    starts = ends - logprobs.counts
    entries = np.concatenate(
        [np.arange(0)] + [np.arange(starts[i], ends[i]) for i in indices.tolist()]
    ).astype(np.int64)
    return Logprobs(
        counts=logprobs.counts[indices],
        token_ids=logprobs.token_ids[entries],
        values=logprobs.values[entries],
    )
