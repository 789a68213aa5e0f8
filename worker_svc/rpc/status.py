"""From our exceptions to gRPC status codes, in one table.

Start-up errors never reach a client and have no row. Knows nothing about streams.
"""

import grpc

from service.status_messages import shortened
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


def status_message_of(error: WorkerError) -> str:
    """Tell the message of an error, short enough to reach the engine whatever value it names."""
    return shortened(str(error))


def status_code_of(error: WorkerError) -> grpc.StatusCode:
    """Tell the status code of an error's class."""
    return STATUS_CODES[type(error)]
