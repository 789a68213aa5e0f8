"""Many generations multiplexed on one stream, for asyncio.

Knows nothing about how requests are built; bulk.py is its twin for threads.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.aio_calls import cancel_when_dropped, translate_errors
from stepwire_client.bulk_window import BulkEvent, BulkWindow

if TYPE_CHECKING:
    from grpc.aio import StreamStreamCall  # cannot be subscripted when it runs


class AsyncBulkStream(AsyncIterator[BulkEvent]):
    """Iterate for (request id, event); requests are sent as earlier ones end.

    An event is a Delta, a FinalOutput, or a StepwireClientError that ends its own request. Leaving an
    ``async with`` block, close(), or dropping the last reference before the end cancels all that is open.
    """

    def __init__(
        self,
        call: "StreamStreamCall[service_pb.GenerateManyRequest, service_pb.GenerateManyResponse]",
        window: BulkWindow,
    ) -> None:
        self._call = call
        cancel_when_dropped(self, call)
        self._window = window
        self._is_writing = True

    async def __anext__(self) -> BulkEvent:
        """Wait for the next event of any request.

        Raises:
            StepwireClientError: if the stream itself broke.
        """
        await self._send()
        refused = self._window.take_refused()
        if refused is not None:
            return refused
        with translate_errors():
            message = await self._call.read()
        if not isinstance(message, service_pb.GenerateManyResponse):  # grpc.aio.EOF
            self._window.end()
            raise StopAsyncIteration
        return self._window.feed(message)

    async def _send(self) -> None:
        """Send all that the window allows; a call that has ended tells its status when it is read."""
        with translate_errors():
            while not self._call.done() and (message := self._window.pull()) is not None:
                await self._call.write(message)
            if self._window.is_exhausted and self._is_writing and not self._call.done():
                self._is_writing = False
                await self._call.done_writing()

    def close(self) -> None:
        """Cancel all requests that have not ended."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
