"""The client's one exception tree, and the one table from gRPC status codes to it.

    StepwireClientError
    ├── InvalidRequest         a field does not fit: the message names field, value and limit
    │   └── AlreadyExists      the request id is in use
    ├── NotFound               no such thing
    ├── PermissionDenied       the server wants credentials, or others
    ├── Unimplemented          the server is too old for this call
    ├── ResourceExhausted      full queue, stream not read, message over the size limit
    ├── Unavailable            the server drains or has no worker
    │   └── ConnectionFailed   no server answers at the address
    │       └── TlsFailed      one does, but the two do not agree on TLS or certificates
    ├── DeadlineExceeded       the call's timeout_seconds passed
    ├── Cancelled              this side cancelled the call
    ├── StreamNotFinished      the end of a stream was asked for before it came
    └── Internal               a fault of the server

Knows nothing about requests or streams.
"""
# Names are those of the status codes, which have no "Error" at the end.
# ruff: noqa: N818

from typing import ClassVar

import grpc


class StepwireClientError(Exception):
    """Root of all errors of this package; keeps the server's message and status code."""

    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    """The code of an error that this side found."""

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode | None = None,
        *,
        retry_after_seconds: float | None = None,
        is_resumable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.retry_after_seconds = retry_after_seconds
        """When it is worth trying again, where the server says so."""
        self.is_resumable = is_resumable
        """The server, or the network, let go of a generation that has not ended."""


class InvalidRequest(StepwireClientError):
    """A field does not fit: the message names field, value and limit."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT


class AlreadyExists(InvalidRequest):
    """The request id is in use."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class NotFound(StepwireClientError):
    """No such thing."""

    default_code = grpc.StatusCode.NOT_FOUND


class PermissionDenied(StepwireClientError):
    """The server wants credentials, or others."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class Unimplemented(StepwireClientError):
    """The server does not know this call."""

    default_code = grpc.StatusCode.UNIMPLEMENTED


class ResourceExhausted(StepwireClientError):
    """The queue is full, the stream was not read, or a message is over the size limit."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(StepwireClientError):
    """The server drains, has no worker, or went away."""

    default_code = grpc.StatusCode.UNAVAILABLE


class ConnectionFailed(Unavailable):
    """No server answers at the address."""


class TlsFailed(ConnectionFailed):
    """A server answers, but the two do not agree on TLS, or one distrusts the other's certificate."""


class DeadlineExceeded(StepwireClientError):
    """The call's ``timeout_seconds`` passed, in the queue or while running."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(StepwireClientError):
    """This side cancelled the call; where the other side lets go of one, it is Unavailable."""

    default_code = grpc.StatusCode.CANCELLED


class StreamNotFinished(StepwireClientError):
    """The end of a stream was asked for before it came."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class Internal(StepwireClientError):
    """A fault of the server."""

    default_code = grpc.StatusCode.INTERNAL


ERROR_OF_CODE: dict[grpc.StatusCode, type[StepwireClientError]] = {
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNKNOWN: Internal,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ABORTED: Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: Internal,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DATA_LOSS: Internal,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
}
"""Every status code but OK."""

_CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

_CALL_ID_KEY = "x-request-id"
_RETRY_AFTER_KEY = "retry-after-ms"
_RESUME_SEED_KEY = "stepwire-resume-seed"

# What gRPC itself says of a call that this side cancelled, or whose channel it closed.
_CANCELLED_HERE = ("Locally cancelled", "Channel closed!", "Channel deallocated!", "Call cancelled in fork")

# What gRPC itself says when it could not connect; a server's own UNAVAILABLE reads otherwise.
_CONNECT_FAILURES = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving ")

_BROKE_OFF = "the server broke off: it may want TLS, or a client certificate that it trusts"
# Words of what gRPC says then -> what they mean; the first that is found counts.
_TLS_FAILURES = {
    "WRONG_VERSION_NUMBER": "the server speaks no TLS",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not trusted",
    "security handshaker": "the certificate files cannot be used",
    "Socket closed": _BROKE_OFF,
    "reset by peer": _BROKE_OFF,
    "Broken pipe": _BROKE_OFF,
}


def error_of_status(
    code: grpc.StatusCode, message: str, *, retry_after_ms: int = 0, is_resumable: bool = False
) -> StepwireClientError:
    """Build the exception for a status ``code`` that is not OK; 0 ms are no hint."""
    is_connect_failure = code is grpc.StatusCode.UNAVAILABLE and message.startswith(_CONNECT_FAILURES)
    error_type = ConnectionFailed if is_connect_failure else ERROR_OF_CODE[code]
    meaning = next((_TLS_FAILURES[words] for words in _TLS_FAILURES if words in message), "")
    if is_connect_failure and meaning:
        error_type, message = TlsFailed, f"{meaning} ({message})"
    return error_type(
        message or code.name,
        code,
        retry_after_seconds=retry_after_ms / 1000 if retry_after_ms else None,
        is_resumable=is_resumable and not is_connect_failure,
    )


def error_of_number(
    number: int, message: str, *, retry_after_ms: int = 0, is_resumable: bool = False
) -> StepwireClientError:
    """Build the exception for a google.rpc.Code ``number``; one that nobody knows is UNKNOWN."""
    code = _CODE_OF_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    if code is grpc.StatusCode.OK:
        return Internal(f"the server told an error with code OK: {message}")
    return error_of_status(code, message, retry_after_ms=retry_after_ms, is_resumable=is_resumable)


def error_of_rpc(error: grpc.RpcError) -> StepwireClientError:
    """Build the exception for what grpc or grpc.aio raised."""
    # Both kinds of RpcError that a call can raise are also calls with code() and details().
    assert isinstance(error, (grpc.Call, grpc.aio.AioRpcError)), f"not the error of a call: {error!r}"
    code, trailers = error.code(), {str(key): str(value) for key, value in error.trailing_metadata() or ()}
    # Every status of the server's own carries an id; one without it is gRPC's: the connection is lost.
    is_lost = code is grpc.StatusCode.UNAVAILABLE and _CALL_ID_KEY not in trailers
    details = error.details() or ""
    if code is grpc.StatusCode.CANCELLED and not details.startswith(_CANCELLED_HERE):
        # So a server's gRPC ends the calls that reach it while it closes: it lets go of them.
        code, details, is_lost = grpc.StatusCode.UNAVAILABLE, details or "the server cancelled the call", True
    after_ms = trailers.get(_RETRY_AFTER_KEY, "")
    return error_of_status(
        code,
        details,
        retry_after_ms=int(after_ms) if after_ms.isdecimal() else 0,
        is_resumable=is_lost or _RESUME_SEED_KEY in trailers,
    )
