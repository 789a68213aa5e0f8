"""How requests outlive a worker: an epoch ends, another begins, or they move to another core.

What a worker held is forgotten with it; a live request goes on from its prompt and all folded tokens.
A request that kills workers must end, and must not take those beside it along:

- Who holds a lane, or has rows in flight, when a worker is lost may have killed it: that is counted,
  and the third time the request ends. Who only waited is not counted; nobody is where a worker left in
  an orderly way.
- Before that, a request on its last chance starts only when no other on its last chance is *on trial*:
  running, and not yet past the tokens that were in flight when its worker was lost. So of many
  suspects that run together twice, one at a time stands alone where the killer kills.
- When a worker is lost with a request on trial, that one alone is counted.

Knows nothing about clocks, streams or how many worker groups there are.
"""

from scheduler_svc.core.capacity import max_total_tokens
from scheduler_svc.core.plan import FinishedRequest
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import CoreLimits, FinishReason, Incarnation, Lane, Request, RequestStatus
from scheduler_svc.errors import InvalidRequestError

MAX_EPOCHS_LOST = 3
"""A request that was running when this many workers were lost ends with an error."""


def may_start(state: SchedulerState, request: Request) -> bool:
    """Whether a queued request need not wait for another one's trial."""
    return request.num_epochs_lost < MAX_EPOCHS_LOST - 1 or _on_trial(state) is None


def note_start(state: SchedulerState, request: Request) -> None:
    """Put a request that starts on trial, if it is on its last chance."""
    if request.num_epochs_lost == MAX_EPOCHS_LOST - 1:
        state.suspect = request


def end_epoch(state: SchedulerState, *, is_orderly: bool = False) -> list[FinishedRequest]:
    """Forget all that a lost worker held; end the requests that were running too often.

    May be called again, and with nothing running: then nobody is counted.
    """
    on_trial = _on_trial(state)
    suspects = list(state.late_requests.values())
    for lane in state.lanes.admission_order.tolist():
        suspects.append(state.lanes.request(lane))
        state.preempt(Lane(lane))
    state.start_epoch(state.limits)
    for request in suspects:
        request.num_late_rows = 0
        request.num_epochs_lost += not is_orderly and (on_trial is None or request is on_trial)
    return [
        state.end(
            request,
            FinishReason.WORKER_LOST,
            message=f"{request.num_epochs_lost} workers were lost while they ran this request",
        )
        for request in suspects
        if request.num_epochs_lost >= MAX_EPOCHS_LOST
    ]


def begin_epoch(state: SchedulerState, limits: CoreLimits) -> list[FinishedRequest]:
    """Start over with a new worker; end the requests that it cannot hold."""
    assert not state.lanes.num_running, "the epoch before has ended"
    state.start_epoch(limits)
    return [ended for request in state.queues.requests() if (ended := _fit_again(state, request))]


def give_away(state: SchedulerState) -> tuple[Request, ...]:
    """Take out all live requests, those to run next first. None may be running."""
    assert not state.lanes.num_running, "the epoch has ended"
    requests = tuple(state.queues.requests())
    for request in requests:
        state.queues.remove(request)
        del state.requests[request.request_id]
    return requests


def adopt(state: SchedulerState, request: Request) -> FinishedRequest | None:
    """Queue a live request of another core, behind those of the same kind; end it where it cannot fit."""
    assert request.request_id not in state.requests, f"{request.request_id!r} lives already"
    state.num_arrivals += 1
    request.arrival = state.num_arrivals
    if request.incarnation:
        # It ran elsewhere, under a number that may be another request's here.
        state.num_admissions += 1
        request.incarnation = Incarnation(state.num_admissions)
    state.requests[request.request_id] = request
    if request.status is RequestStatus.PREEMPTED:
        state.queues.push_preempted(request)
    else:
        state.queues.push_waiting(request)
    return _fit_again(state, request)


def _on_trial(state: SchedulerState) -> Request | None:
    """Give the request that is running on its last chance and not yet past what it may have broken."""
    suspect = state.suspect
    if suspect is None or suspect.status is not RequestStatus.RUNNING:
        return None
    has_passed = state.lanes.num_folded[suspect.lane] > suspect.num_tokens_in_doubt
    return None if has_passed else suspect


def _fit_again(state: SchedulerState, request: Request) -> FinishedRequest | None:
    """Hold a live request to the limits there are now; end it where it cannot go on."""
    try:
        request.max_total_tokens = max_total_tokens(request, state.limits)
    except InvalidRequestError as error:
        return state.end(request, FinishReason.DOES_NOT_FIT, message=str(error))
    if request.num_tokens >= request.max_total_tokens:
        return state.end(request, FinishReason.LENGTH)
    return None
