"""From our exceptions to gRPC status codes, in one table.

Start-up errors never reach a client and have no row. Knows nothing about streams.
"""

import grpc

from worker_svc.errors import (
    DeviceLostError,
    HelloMismatchError,
    NotReadyError,
    ProtocolError,
    StepFailedError,
    SupersededError,
    WorkerError,
)

STATUS_CODES: dict[type[WorkerError], grpc.StatusCode] = {
    NotReadyError: grpc.StatusCode.UNAVAILABLE,
    HelloMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    SupersededError: grpc.StatusCode.ABORTED,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    StepFailedError: grpc.StatusCode.INTERNAL,
    DeviceLostError: grpc.StatusCode.INTERNAL,
}


_MAX_MESSAGE_CHARACTERS = 500
"""A message travels in trailers, of which gRPC's clients refuse some above 8 KiB."""


def status_message_of(error: WorkerError) -> str:
    """Tell the message of an error, short enough to reach the engine whatever value it names."""
    message = str(error)
    if len(message) <= _MAX_MESSAGE_CHARACTERS:
        return message
    half = _MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]} ... {message[-half:]}"


def status_code_of(error: WorkerError) -> grpc.StatusCode:
    """Tell the status code of an error's class."""
    return STATUS_CODES[type(error)]
