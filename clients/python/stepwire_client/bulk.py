"""Many generations multiplexed on one stream, for threads.

Knows nothing about how requests are built; aio_bulk.py is its twin for asyncio.
"""

import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol, Self

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.bulk_window import BulkEvent, BulkWindow
from stepwire_client.errors import error_of_rpc


class BulkCall(Protocol):
    """The part of a grpc call that a bulk uses."""

    def __next__(self) -> service_pb.GenerateManyResponse:
        """Wait for the next message."""

    def cancel(self) -> bool:
        """End the call."""


StartBulkCall = Callable[[Iterator[service_pb.GenerateManyRequest]], BulkCall]


class BulkStream(Iterator[BulkEvent]):
    """Iterate for (request id, event); requests are sent as earlier ones end.

    An event is a Delta, a FinalOutput, or a StepwireClientError that ends its own request. Leaving a
    ``with`` block or close() before the end cancels all that is open.
    """

    def __init__(self, start: StartBulkCall, window: BulkWindow) -> None:
        self._window = window
        # grpc reads the requests in a thread of its own: None ends it.
        self._outbox: SimpleQueue[service_pb.GenerateManyRequest | None] = SimpleQueue()
        self._end_outbox = weakref.finalize(self, self._outbox.put, None)
        self._call = start(iter(self._outbox.get, None))

    def __next__(self) -> BulkEvent:
        """Wait for the next event of any request.

        Raises:
            StepwireClientError: if the stream itself broke.
        """
        while (message := self._window.pull()) is not None:
            self._outbox.put(message)
        if self._window.is_exhausted:
            self._end_outbox()
        return self._window.take_refused() or self._window.feed(self._read())

    def _read(self) -> service_pb.GenerateManyResponse:
        try:
            return next(self._call)
        except StopIteration:
            self._window.end()
            raise
        except grpc.RpcError as error:
            raise error_of_rpc(error) from error

    def close(self) -> None:
        """Cancel all requests that have not ended."""
        self._end_outbox()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
