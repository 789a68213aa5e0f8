"""Fold one step's result back, or that of one iteration of a lease: append tokens and end requests.

Rows are matched through the FIFO of steps in flight, by lane and incarnation; a row whose request
has ended is dropped, one whose request was preempted still counts. Knows nothing about planning.
"""

import numpy as np

from scheduler_svc.core.lanes import NO_TOKEN, LaneTable
from scheduler_svc.core.plan import FinishedRequest, Logprobs, StepOutputs, StepResult
from scheduler_svc.core.state import InFlightStep, SchedulerState
from scheduler_svc.core.types import BoolArray, FinishReason, Incarnation, Int32Array, Int64Array, Request


def fold_result(state: SchedulerState, result: StepResult) -> StepOutputs:
    """Fold the next result of the oldest step in flight.

    Returns:
        The tokens that count, with their owners, and the requests that ended with them.
    """
    step = _take_step(state, result)
    lanes = state.lanes
    is_computed = is_live = lanes.incarnation == step.incarnations
    if step.num_steps > 1:
        is_computed = _count_iteration(state, step, result, is_live=is_live)
    else:
        lanes.num_computed += step.num_tokens * is_live
        lanes.num_rows_in_flight -= step.num_rows * is_live

    token_ids, token_lanes, kept = result.token_ids, step.sample_lanes[: len(result.token_ids)], None
    is_kept = is_computed[token_lanes]
    if np.count_nonzero(is_kept) < len(is_kept):
        kept = is_kept.nonzero()[0]
        token_ids, token_lanes = token_ids[kept], token_lanes[kept]
    owners, handles = lanes.owner[token_lanes], lanes.handle[token_lanes]
    finished = _append_tokens(state, token_lanes, token_ids)

    if state.late_requests:
        late = _fold_late_rows(state, step, result, is_live=is_live)
        finished += late.finished
        if kept is not None:
            kept = np.concatenate([kept, np.array(late.indices, np.int64)])
            token_ids = result.token_ids[kept]
            owners = np.concatenate([owners, np.array(late.owners, np.int32)])
            handles = np.concatenate([handles, np.array(late.handles, np.int64)])
    state.totals.num_output_tokens += len(token_ids)
    return StepOutputs(
        owners=owners,
        handles=handles,
        token_ids=token_ids,
        logprobs=_select(result.logprobs, kept),
        finished=tuple(finished),
    )


def find_fault(state: SchedulerState, result: StepResult) -> str:
    """Say why the oldest step's next result is none that a worker may give; empty where it is right.

    Looks for what the plan alone does not show: whether a row that is told as ended is one of a request
    that goes on, in a lane or preempted.
    """
    step = state.in_flight[0]
    if step.num_steps == 1 or result.token_ids.min(initial=0) >= 0:
        return ""
    lanes = step.sample_lanes[: len(result.token_ids)][result.token_ids < 0]
    incarnations = step.incarnations[lanes]
    is_live = state.lanes.incarnation[lanes] == incarnations
    if state.late_requests:
        is_live |= np.isin(incarnations, list(state.late_requests))
    num_wrong = np.count_nonzero(is_live & (step.num_tokens[lanes] > result.iteration))
    return f"it ends {num_wrong} rows that go on" if num_wrong else ""


def _take_step(state: SchedulerState, result: StepResult) -> InFlightStep:
    """Find the step that a result is of, the oldest; with its last result it is in flight no more."""
    assert state.in_flight, f"step {result.step_id} has a result but nothing is in flight"
    step = state.in_flight[0]
    assert step.step_id == result.step_id, f"result of step {result.step_id}, expected {step.step_id}"
    num_told = result.num_iterations
    assert len(result.token_ids) == len(step.sample_lanes) * num_told, "one token for each sampling row"
    if step.num_steps == 1:
        assert (result.iteration, num_told, result.is_last) == (0, 1, True), "a step has one result"
        return state.in_flight.popleft()
    assert result.iteration == state.num_iterations_folded, "iterations come in order"
    state.num_iterations_folded += num_told
    assert num_told <= 1, "an iteration at a time"
    is_complete = state.num_iterations_folded == step.num_steps
    assert result.is_last or not is_complete, "the last iteration is the last result"
    if result.is_last:
        state.num_iterations_folded = 0
        state.open_leases.close(step.step_id)
        state.in_flight.popleft()
    return step


def _count_iteration(
    state: SchedulerState, step: InFlightStep, result: StepResult, *, is_live: BoolArray
) -> BoolArray:
    """Count what an iteration of a lease computed; tell which lanes' requests got a token."""
    lanes = state.lanes
    if result.is_last:
        lanes.num_rows_in_flight -= step.num_rows * is_live
        _take_back_unused(state, step, result, is_live=is_live)
    if not result.num_iterations:
        return np.zeros_like(is_live)
    is_computed = is_live & (step.num_tokens > result.iteration)
    lanes.num_computed += is_computed
    told = result.token_ids[is_computed[step.sample_lanes]]
    assert told.min(initial=0) >= 0, "the worker ended a row that goes on"
    return is_computed


def _take_back_unused(
    state: SchedulerState, step: InFlightStep, result: StepResult, *, is_live: BoolArray
) -> None:
    """Count no longer as scheduled what a lease that is over leaves unused."""
    lanes, num_run = state.lanes, result.iteration + result.num_iterations
    num_unused = np.maximum(step.num_tokens - num_run, 0) * is_live
    lanes.num_scheduled -= num_unused
    lanes.num_known -= num_unused
    if (lanes.num_rows_in_flight[num_unused > 0] == 0).any():
        # Later steps left these rows out, since they seemed to be at their ends.
        state.open_leases.ask_end()


def _append_tokens(
    state: SchedulerState, token_lanes: Int64Array, token_ids: Int32Array
) -> list[FinishedRequest]:
    """Append each lane's new token; end the requests that it stops, and those that reach their length."""
    lanes = state.lanes
    new_tokens = lanes.no_tokens.copy()
    new_tokens[token_lanes] = token_ids
    is_new = new_tokens != NO_TOKEN
    lanes.write_tokens(token_lanes, token_ids)
    lanes.num_folded += is_new
    is_stop = _find_stops(lanes, new_tokens)
    is_end = is_stop | (lanes.num_folded >= lanes.max_total)
    is_end &= is_new
    return [
        _end(state, lanes.request(lane), int(new_tokens[lane]), is_stop=bool(is_stop[lane]))
        for lane in is_end.nonzero()[0].tolist()
    ]


def _find_stops(lanes: LaneTable, new_tokens: Int32Array) -> BoolArray:
    """Tell which lanes' new tokens stop their requests."""
    is_stop: BoolArray = lanes.stop_ids[0] == new_tokens
    for column in range(1, lanes.num_stop_columns):
        is_stop |= lanes.stop_ids[column] == new_tokens
    if lanes.some_have_many_stops:
        for lane in (lanes.has_many_stops & (new_tokens != NO_TOKEN)).nonzero()[0].tolist():
            is_stop[lane] = new_tokens[lane] in lanes.request(lane).sampling.stop_token_ids
    is_stop &= lanes.num_folded > lanes.stops_from
    return is_stop


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
    state: SchedulerState, step: InFlightStep, result: StepResult, *, is_live: BoolArray
) -> _LateOutputs:
    """Fold the rows whose lane was taken away meanwhile."""
    late = _LateOutputs()
    lanes_told = step.sample_lanes[: len(result.token_ids)]
    index_of_lane = {lane: index for index, lane in enumerate(lanes_told.tolist())}
    for lane in (~is_live & (step.num_rows > 0)).nonzero()[0].tolist():
        incarnation = Incarnation(int(step.incarnations[lane]))
        request = state.late_requests.get(incarnation)
        if request is None:
            continue  # the request has ended: its row is dropped
        request.num_late_rows -= result.is_last
        if not request.num_late_rows:
            del state.late_requests[incarnation]
        index = index_of_lane.get(lane)
        if index is not None and step.num_tokens[lane] > result.iteration:
            late.indices.append(index)
            late.owners.append(request.owner)
            late.handles.append(request.handle)
            late.finished += _append_late_token(state, request, int(result.token_ids[index]))
    return late


def _append_late_token(state: SchedulerState, request: Request, token_id: int) -> list[FinishedRequest]:
    """Append a token to a preempted request, which may end with it."""
    assert token_id >= 0, "the worker ended a row that goes on"
    position = request.num_tokens
    request.token_ids = np.append(request.token_ids, np.int32(token_id))
    sampling = request.sampling
    is_stop = (
        token_id in sampling.stop_token_ids and position >= request.num_prompt_tokens + sampling.min_tokens
    )
    if is_stop or position + 1 >= request.max_total_tokens:
        return [_end(state, request, token_id, is_stop=is_stop)]
    return []


def _select(logprobs: Logprobs | None, indices: Int64Array | None) -> Logprobs | None:
    """Keep the entries of the tokens at ``indices``; None keeps all."""
    if logprobs is None or not logprobs.counts.sum():
        return None
    if indices is None:
        return logprobs
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
