"""The output of one generation, as it comes, for threads.

Knows nothing about how requests are built; aio_stream.py is its twin for asyncio.
"""

from collections.abc import Iterator
from typing import Protocol, Self

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.collector import OutputCollector
from stepwire_client.decode import decode_event
from stepwire_client.errors import error_of_rpc
from stepwire_client.results import Completion, Delta, FinalOutput


class ResponseCall(Protocol):
    """The part of a grpc call that a stream uses."""

    def __next__(self) -> service_pb.GenerateResponse:
        """Wait for the next message."""

    def cancel(self) -> bool:
        """End the call."""


class GenerationStream(Iterator[Delta]):
    """Iterate for deltas; after the end ``final`` and ``completion`` tell the rest.

    Leaving a ``with`` block, close(), or dropping the last reference before the end cancels the
    request, which frees all it holds on the server.
    """

    def __init__(self, call: ResponseCall, request_id: str) -> None:
        self._call = call
        self._output = OutputCollector(request_id)

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._output.request_id

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
        try:
            return next(self._call)
        except StopIteration:
            self._output.end()
            raise
        except grpc.RpcError as error:
            raise error_of_rpc(error) from error

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
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
