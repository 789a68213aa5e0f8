"""The one table from exceptions to gRPC status codes, and the hints that go with them.

Hints are trailing metadata in plain ASCII, which a client of any language can read; docs/protocol.md
tells what they mean. Knows nothing about where an exception came from. A test fails when a class of
scheduler_svc/errors.py has no row.
"""

import grpc

from scheduler_svc.errors import (
    DeadlineError,
    DrainingError,
    DuplicateRequestError,
    EventsGoneError,
    InternalError,
    InvalidRequestError,
    ModelFolderError,
    ModelMismatchError,
    QueueFullError,
    RequestInterruptedError,
    SlowConsumerError,
    StepwireError,
    UnfitWorkerError,
    UnknownRequestError,
    UnsupportedError,
    WorkerUnavailableError,
)
from service.status_messages import shortened

STATUS_OF_ERROR: dict[type[StepwireError], grpc.StatusCode] = {
    StepwireError: grpc.StatusCode.INTERNAL,
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    DuplicateRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownRequestError: grpc.StatusCode.NOT_FOUND,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    SlowConsumerError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    DrainingError: grpc.StatusCode.UNAVAILABLE,
    WorkerUnavailableError: grpc.StatusCode.UNAVAILABLE,
    RequestInterruptedError: grpc.StatusCode.UNAVAILABLE,
    UnfitWorkerError: grpc.StatusCode.FAILED_PRECONDITION,
    ModelMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    ModelFolderError: grpc.StatusCode.FAILED_PRECONDITION,
    EventsGoneError: grpc.StatusCode.OUT_OF_RANGE,
    UnsupportedError: grpc.StatusCode.UNIMPLEMENTED,
    InternalError: grpc.StatusCode.INTERNAL,
}

RETRY_AFTER_MS: dict[type[StepwireError], int] = {
    QueueFullError: 1000,
    DrainingError: 1000,
    WorkerUnavailableError: 1000,
    RequestInterruptedError: 100,
}
"""When it is worth trying again, of the errors that pass by themselves."""

RETRY_AFTER_KEY = "retry-after-ms"
RESUME_SEED_KEY = "stepwire-resume-seed"
RESUME_NUM_TOKENS_KEY = "stepwire-resume-num-tokens"

_INTERNAL_MESSAGE = "internal error: the server's log has the details"


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return code and message for a client; of an unexpected error it learns no details."""
    code = STATUS_OF_ERROR.get(type(error))  # type: ignore[arg-type]
    if code is None:
        return grpc.StatusCode.INTERNAL, _INTERNAL_MESSAGE
    # A chat template's own words can hold half a surrogate pair out of its JSON arguments. gRPC cannot
    # encode that, and the call would never end.
    return code, shortened(str(error).encode(errors="backslashreplace").decode())


def retry_after_ms(error: Exception) -> int:
    """Tell when it is worth trying again; 0: nothing is known of that."""
    return RETRY_AFTER_MS.get(type(error), 0)  # type: ignore[arg-type]


def hints_of(error: Exception) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that tells a client how to go on."""
    hints: list[tuple[str, str]] = []
    if after_ms := retry_after_ms(error):
        hints.append((RETRY_AFTER_KEY, str(after_ms)))
    if isinstance(error, RequestInterruptedError):
        # Not the tokens themselves: the client has them, and trailers of 8 KiB would not hold many.
        hints.append((RESUME_NUM_TOKENS_KEY, str(error.num_output_tokens)))
        hints.append((RESUME_SEED_KEY, str(error.seed)))
    return tuple(hints)


def is_expected(error: Exception) -> bool:
    """Tell whether an error has a row of its own, so that no traceback is worth logging."""
    return type(error) in STATUS_OF_ERROR and not isinstance(error, InternalError)
