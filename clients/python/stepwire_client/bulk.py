"""Many generations multiplexed on one stream, for threads.

Knows nothing about how requests are built; aio_bulk.py is its twin for asyncio.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol, Self

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.bulk_window import BulkEvent, BulkWindow, Pause
from stepwire_client.errors import Cancelled, Unavailable, error_of_rpc


class BulkCall(Protocol):
    """The part of a grpc call that a bulk uses."""

    def __next__(self) -> service_pb.GenerateManyResponse:
        """Wait for the next message."""

    def cancel(self) -> bool:
        """End the call."""


StartBulkCall = Callable[[Iterator[service_pb.GenerateManyRequest], float | None], BulkCall]
"""Starts a call that sends these requests, with so many seconds until its deadline."""


class BulkStream(Iterator[BulkEvent]):
    """Iterate for (request id, event); requests are sent as earlier ones end.

    An event is a Delta, a FinalOutput, or a StepwireClientError that ends its own request. Leaving a
    ``with`` block or close() before the end cancels all that is open. Where the server or the connection
    goes, all that is open goes on over another call, and nothing is told twice.
    """

    def __init__(self, start: StartBulkCall, window: BulkWindow) -> None:
        self._start = start
        self._window = window
        self._is_closed = threading.Event()
        self._start_call()

    def _start_call(self) -> None:
        # grpc reads the requests in a thread of its own: None ends it.
        self._outbox: SimpleQueue[service_pb.GenerateManyRequest | None] = SimpleQueue()
        self._end_outbox = weakref.finalize(self, self._outbox.put, None)
        self._call = self._start(iter(self._outbox.get, None), self._window.seconds_left(time.monotonic()))

    def __next__(self) -> BulkEvent:
        """Wait for the next event of any request.

        Raises:
            StepwireClientError: if the stream itself broke, and could not go on.
        """
        while True:
            while (message := self._window.pull()) is not None:
                self._outbox.put(message)
            if self._window.is_exhausted:
                self._end_outbox()
            outcome = self._window.take_refused() or self._read()
            if isinstance(outcome, Pause):
                self._go_on_after(outcome)
            elif outcome is not None:
                return outcome

    def _read(self) -> BulkEvent | Pause | None:
        try:
            message = next(self._call)
        except StopIteration:
            self._window.end()
            raise
        except grpc.RpcError as rpc_error:
            error = error_of_rpc(rpc_error)
            if isinstance(error, Unavailable) and self._window.is_done:
                raise StopIteration from rpc_error  # only the status was lost
            return self._window.break_off(error, time.monotonic())
        return self._window.feed(message, time.monotonic())

    def _go_on_after(self, pause: Pause) -> None:
        self._end_outbox()
        self._call.cancel()
        if self._is_closed.wait(pause.seconds):
            raise Cancelled("the stream was closed on this side")
        try:
            self._start_call()
        except ValueError as closed:  # so says a channel
            raise Cancelled("the client was closed") from closed

    def close(self) -> None:
        """Cancel all requests that have not ended."""
        self._is_closed.set()
        self._end_outbox()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
