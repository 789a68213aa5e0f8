"""What gRPC raises when it writes to a client that has gone, turned into a cancellation.

It raises so when the write comes before its own cancelling of the call, and logs it as a fault of
ours. Knows nothing about what is written.
"""

import asyncio
from types import TracebackType

import grpc


class _CancelledWhereClientIsGone:
    """A context manager by hand: one made of a generator costs each message 1 us more."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, grpc.aio.InternalError):
            raise asyncio.CancelledError("the client is gone") from error


_CANCELLED_WHERE_CLIENT_IS_GONE = _CancelledWhereClientIsGone()


def cancelled_where_client_is_gone() -> _CancelledWhereClientIsGone:
    """Raise CancelledError where a write or a status inside the ``with`` block reaches nobody."""
    return _CANCELLED_WHERE_CLIENT_IS_GONE
