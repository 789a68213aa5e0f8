"""The output of one generation, as it comes, for asyncio.

Knows nothing about how requests are built; stream.py is its twin for threads.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.aio_calls import cancel_when_dropped, translate_errors
from stepwire_client.collector import OutputCollector
from stepwire_client.decode import decode_event
from stepwire_client.results import Completion, Delta, FinalOutput

if TYPE_CHECKING:
    from grpc.aio import UnaryStreamCall  # cannot be subscripted when it runs


class AsyncGenerationStream(AsyncIterator[Delta]):
    """Iterate for deltas; after the end ``final`` and ``completion()`` tell the rest.

    Leaving an ``async with`` block, close(), or dropping the last reference before the end cancels
    the request, which frees all it holds on the server. So does cancelling the task that reads.
    """

    def __init__(
        self,
        call: "UnaryStreamCall[service_pb.GenerateRequest, service_pb.GenerateResponse]",
        request_id: str,
    ) -> None:
        self._call = call
        cancel_when_dropped(self, call)
        self._output = OutputCollector(request_id)

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._output.request_id

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
            with translate_errors():
                message = await self._call.read()
            if not isinstance(message, service_pb.GenerateResponse):  # grpc.aio.EOF
                self._output.end()
                raise StopAsyncIteration
            delta = self._output.feed(decode_event(message))
        return delta

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
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
