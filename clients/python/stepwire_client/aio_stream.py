"""The output of one generation, as it comes, for asyncio.

Knows nothing about how requests are built; stream.py is its twin for threads.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Self

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.aio_calls import cancel_when_dropped, translate_errors
from stepwire_client.collector import OutputCollector
from stepwire_client.decode import decode_event
from stepwire_client.errors import Cancelled, StepwireClientError, Unavailable
from stepwire_client.results import Completion, Delta, FinalOutput
from stepwire_client.resume import Patience, ResumePoint

if TYPE_CHECKING:
    from grpc.aio import UnaryStreamCall  # cannot be subscripted when it runs


StartCall = Callable[
    [service_pb.GenerateRequest, float | None],
    "UnaryStreamCall[service_pb.GenerateRequest, service_pb.GenerateResponse]",
]
"""Starts a call for a request with so many seconds until its deadline."""


class AsyncGenerationStream(AsyncIterator[Delta]):
    """Iterate for deltas; after the end ``final`` and ``completion()`` tell the rest.

    Leaving an ``async with`` block, close(), or dropping the last reference before the end cancels
    the request, which frees all it holds on the server. So does cancelling the task that reads. Where
    the server or the connection goes, the stream goes on with another call, and tells nothing twice.
    """

    def __init__(self, start: StartCall, request: service_pb.GenerateRequest, patience: Patience) -> None:
        self._start = start
        self._point = ResumePoint(request)
        self._patience = patience
        self._is_closed = False
        self._output = OutputCollector(request.request_id)
        self._start_call()

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._output.request_id

    @property
    def num_resumes(self) -> int:
        """How often it went on with another call."""
        return self._point.num_resumes

    @property
    def final(self) -> FinalOutput:
        """Finish reason, matched stop, usage and timings; raises StreamNotFinished before the end."""
        return self._output.final

    async def __anext__(self) -> Delta:
        """Wait for new output.

        Raises:
            StepwireClientError: as the request's status says.
        """
        delta = None
        while delta is None:  # the final message is no delta: read on to the status
            delta = self._output.feed(decode_event(await self._read()))
        return delta

    async def _read(self) -> service_pb.GenerateResponse:
        while True:
            try:
                with translate_errors():
                    message = await self._call.read()
            except Unavailable as error:
                await self._recover(error)
                continue
            if not isinstance(message, service_pb.GenerateResponse):  # grpc.aio.EOF
                self._output.end()
                raise StopAsyncIteration
            if self._point.take(message):
                self._patience.note_output()
            return message

    async def _recover(self, error: StepwireClientError) -> None:
        """Wait and start the next call; raise where there is none."""
        if self._output.has_ended:
            raise StopAsyncIteration from error  # only the status was lost
        delay_seconds = self._patience.delay_after(
            error, time.monotonic(), points=(self._point,), is_resumed=self._point.is_resumed
        )
        if delay_seconds is None:
            raise error
        await asyncio.sleep(0.0 if self._is_closed else delay_seconds)
        if self._is_closed:
            raise Cancelled("the stream was closed on this side") from error
        try:
            self._start_call()
        except grpc.aio.UsageError as closed:
            raise Cancelled("the client was closed") from closed

    def _start_call(self) -> None:
        seconds_left = self._patience.seconds_left(time.monotonic())
        self._call = self._start(self._point.next_request(), seconds_left)
        cancel_when_dropped(self, self._call)

    async def text(self) -> str:
        """Wait for the end and return the whole text."""
        return (await self.completion()).text

    async def completion(self) -> Completion:
        """Wait for the end and return all of it."""
        async for _ in self:
            pass
        return self._output.completion()

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        self._is_closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
