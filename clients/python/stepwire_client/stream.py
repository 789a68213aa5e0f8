"""The output of one generation, as it comes, for threads.

Knows nothing about how requests are built; aio_stream.py is its twin for asyncio.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, Self

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.collector import OutputCollector
from stepwire_client.decode import decode_event
from stepwire_client.errors import Cancelled, StepwireClientError, Unavailable, error_of_rpc
from stepwire_client.results import Completion, Delta, FinalOutput
from stepwire_client.resume import Patience, ResumePoint


class ResponseCall(Protocol):
    """The part of a grpc call that a stream uses."""

    def __next__(self) -> service_pb.GenerateResponse:
        """Wait for the next message."""

    def cancel(self) -> bool:
        """End the call."""


StartCall = Callable[[service_pb.GenerateRequest, float | None], ResponseCall]
"""Starts a call for a request with so many seconds until its deadline."""


class GenerationStream(Iterator[Delta]):
    """Iterate for deltas; after the end ``final`` and ``completion`` tell the rest.

    Leaving a ``with`` block, close(), or dropping the last reference before the end cancels the
    request, which frees all it holds on the server. Where the server or the connection goes, the
    stream goes on with another call, and tells nothing twice.
    """

    def __init__(self, start: StartCall, request: service_pb.GenerateRequest, patience: Patience) -> None:
        self._start = start
        self._point = ResumePoint(request)
        self._patience = patience
        self._is_closed = threading.Event()
        self._output = OutputCollector(request.request_id)
        self._call = self._next_call()

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

    def __next__(self) -> Delta:
        """Wait for new output.

        Raises:
            StepwireClientError: as the request's status says.
        """
        delta = None
        while delta is None:  # the final message is no delta: read on to the status
            delta = self._output.feed(decode_event(self._read()))
        return delta

    def _read(self) -> service_pb.GenerateResponse:
        while True:
            try:
                message = next(self._call)
            except StopIteration:
                self._output.end()
                raise
            except grpc.RpcError as error:
                self._call = self._call_after(error_of_rpc(error), error)
            else:
                if self._point.take(message):
                    self._patience.note_output()
                return message

    def _call_after(self, error: StepwireClientError, cause: grpc.RpcError) -> ResponseCall:
        """Wait and start the next call; raise where there is none."""
        if self._output.has_ended and isinstance(error, Unavailable):
            raise StopIteration from cause  # only the status was lost
        delay_seconds = self._patience.delay_after(
            error, time.monotonic(), points=(self._point,), is_resumed=self._point.is_resumed
        )
        if delay_seconds is None:
            raise error from cause
        if self._is_closed.wait(delay_seconds):
            raise Cancelled("the stream was closed on this side") from cause
        try:
            return self._next_call()
        except ValueError as closed:  # so says a channel
            raise Cancelled("the client was closed") from closed

    def _next_call(self) -> ResponseCall:
        return self._start(self._point.next_request(), self._patience.seconds_left(time.monotonic()))

    def text(self) -> str:
        """Wait for the end and return the whole text."""
        return self.completion().text

    def completion(self) -> Completion:
        """Wait for the end and return all of it."""
        for _ in self:
            pass
        return self._output.completion()

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        self._is_closed.set()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
