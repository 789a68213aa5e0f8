"""How a request's end is told to its owner: one table for the core's reasons, one for refusals.

Knows nothing about protobuf or about gRPC's status codes (the front end has that table).
"""

from scheduler_svc.core.plan import FinishedRequest
from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.values import EndedRequest, RequestEnd
from scheduler_svc.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    QueueFullError,
    StepwireError,
    WorkerUnavailableError,
)

END_OF_REASON: dict[FinishReason, RequestEnd | None] = {
    FinishReason.STOP_TOKEN: RequestEnd.STOP,
    FinishReason.STOP_STRING: RequestEnd.STOP,
    FinishReason.LENGTH: RequestEnd.LENGTH,
    FinishReason.ABORT: RequestEnd.ABORT,
    FinishReason.DEADLINE: RequestEnd.DEADLINE,
    FinishReason.DOES_NOT_FIT: RequestEnd.INVALID,
    # Not UNAVAILABLE, which clients try again: this one may be what the workers died of.
    FinishReason.WORKER_LOST: RequestEnd.INTERNAL,
    # Nobody is left to be told.
    FinishReason.DISCONNECT: None,
    FinishReason.SLOW_CONSUMER: None,
}

# From the narrowest class to the widest: the first that fits is told.
_END_OF_ERROR: tuple[tuple[type[StepwireError], RequestEnd], ...] = (
    (DuplicateRequestError, RequestEnd.DUPLICATE_ID),
    (InvalidRequestError, RequestEnd.INVALID),
    (QueueFullError, RequestEnd.QUEUE_FULL),
    (WorkerUnavailableError, RequestEnd.UNAVAILABLE),
)
REFUSALS = tuple(kind for kind, _ in _END_OF_ERROR)
"""Errors that refuse one request; any other error is our own fault and ends the engine."""


def ended_of_finished(finished: FinishedRequest, queue_time_ns: int) -> EndedRequest | None:
    """Say how ``finished`` is told; None where nobody is to be told."""
    end = END_OF_REASON[finished.reason]
    if end is None:
        return None
    return EndedRequest(
        handle=finished.handle,
        end=end,
        matched_stop_token_id=finished.matched_stop_token_id,
        num_output_tokens=finished.num_output_tokens,
        num_cached_tokens=finished.num_prefix_hit_tokens,
        queue_time_ns=queue_time_ns,
        message=finished.message,
    )


def ended_of_refusal(handle: int, error: StepwireError) -> EndedRequest:
    """Say how the refusal of a request is told."""
    end = next(end for kind, end in _END_OF_ERROR if isinstance(error, kind))
    return EndedRequest(handle=handle, end=end, message=str(error))
