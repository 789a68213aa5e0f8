"""What gRPC raises when it writes to a client that has gone, turned into a cancellation.

It raises so when the write comes before its own cancelling of the call, and logs it as a fault of
ours. Knows nothing about what is written.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc


@contextmanager
def cancelled_where_client_is_gone() -> Iterator[None]:
    """Raise CancelledError where a write or a status inside the ``with`` block reaches nobody."""
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError("the client is gone") from error
