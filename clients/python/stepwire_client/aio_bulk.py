"""Many generations multiplexed on one stream, for asyncio.

Knows nothing about how requests are built; bulk.py is its twin for threads.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.aio_calls import (
    WRITTEN_TOO_LATE,
    cancel_when_dropped,
    has_lost_its_status,
    translate_errors,
    write_first,
)
from stepwire_client.bulk_window import BulkEvent, BulkWindow, Pause
from stepwire_client.errors import Cancelled, Internal, Unavailable

if TYPE_CHECKING:
    from grpc.aio import StreamStreamCall  # cannot be subscripted when it runs

    _BulkCall = StreamStreamCall[service_pb.GenerateManyRequest, service_pb.GenerateManyResponse]

StartBulkCall = Callable[[float | None], "_BulkCall"]
"""Starts a call with so many seconds until its deadline."""
_Outbox = asyncio.Queue[service_pb.GenerateManyRequest | None]
"""Messages to send, in order; None closes this side."""


class AsyncBulkStream(AsyncIterator[BulkEvent]):
    """Iterate for (request id, event); requests are sent as earlier ones end.

    An event is a Delta, a FinalOutput, or a StepwireClientError that ends its own request. Leaving an
    ``async with`` block, close(), or dropping the last reference before the end cancels all that is open.
    Where the server or the connection goes, all that is open goes on over another call, and nothing is
    told twice.
    """

    def __init__(self, start: StartBulkCall, window: BulkWindow) -> None:
        self._start = start
        self._window = window
        self._is_closed = False
        self._start_call()

    def _start_call(self) -> None:
        self._call = self._start(self._window.seconds_left(time.monotonic()))
        cancel_when_dropped(self, self._call)
        self._outbox: _Outbox | None = None
        self._is_writing = True

    async def __anext__(self) -> BulkEvent:
        """Wait for the next event of any request.

        Raises:
            StepwireClientError: if the stream itself broke, and could not go on.
        """
        while True:
            outcome = await self._read()
            if isinstance(outcome, Pause):
                await self._go_on_after(outcome)
            elif outcome is not None:
                return outcome

    async def _read(self) -> BulkEvent | Pause | None:
        try:
            with _translate_errors():
                await self._send()
                refused = self._window.take_refused()
                if refused is not None:
                    return refused
                message = await self._call.read()
        except Unavailable as error:
            if self._window.is_done:
                raise StopAsyncIteration from error  # only the status was lost
            return self._window.break_off(error, time.monotonic())
        if not isinstance(message, service_pb.GenerateManyResponse):  # grpc.aio.EOF
            self._window.end()
            raise StopAsyncIteration
        return self._window.feed(message, time.monotonic())

    async def _go_on_after(self, pause: Pause) -> None:
        self._call.cancel()
        await asyncio.sleep(0.0 if self._is_closed else pause.seconds)
        if self._is_closed:
            raise Cancelled("the stream was closed on this side")
        try:
            self._start_call()
        except grpc.aio.UsageError as closed:
            raise Cancelled("the client was closed") from closed

    async def _send(self) -> None:
        """Have all sent that the window allows; a call that has ended tells its status when it is read."""
        while not self._call.done() and (message := self._window.pull()) is not None:
            if self._outbox is not None:
                self._outbox.put_nowait(message)
                continue
            await write_first(self._call, message)
            self._outbox = self._start_sender()
        if self._window.is_exhausted and self._is_writing and not self._call.done():
            self._is_writing = False
            if self._outbox is None:
                await self._call.done_writing()
            else:
                self._outbox.put_nowait(None)

    def _start_sender(self) -> _Outbox:
        outbox: _Outbox = asyncio.Queue()
        self._call.add_done_callback(lambda _: outbox.put_nowait(None))
        self._sender = asyncio.create_task(_send_all(self._call, outbox))
        return outbox

    def close(self) -> None:
        """Cancel all requests that have not ended."""
        self._is_closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def _send_all(call: "_BulkCall", outbox: _Outbox) -> None:
    """Send what is put in, until the call ends, while others read it.

    A server with much to tell takes no more before that is read: who sent all before reading would wait for
    ever.
    """
    try:
        while (message := await outbox.get()) is not None:
            await call.write(message)
        await call.done_writing()
    except (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        return  # the call has ended: it tells its status to who reads it


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors, and tell of a call whose status was lost that it ended early."""
    try:
        with translate_errors():
            yield
    except Internal as error:
        if not has_lost_its_status(error.code, error.message):
            raise
        raise Unavailable(WRITTEN_TOO_LATE, is_resumable=True) from error
