"""GenerateMany: many generations multiplexed on one bidi stream, each with an end of its own.

Errors of one request are told in-band and leave the stream open. Knows nothing about how one
generation runs (generate.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from stepwire.v1 import generation_service_pb2 as pb

from scheduler_svc.errors import (
    DrainingError,
    DuplicateRequestError,
    InvalidRequestError,
    RequestInterruptedError,
    StepwireError,
)
from scheduler_svc.frontend import convert
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.request_check import check_request_id
from scheduler_svc.frontend.status import is_expected, retry_after_ms, status_of
from scheduler_svc.frontend.stream_places import StreamPlaces
from scheduler_svc.frontend.values import Final, Told

NUM_MORE_THAN_WAIT = 4096
"""Open requests of a stream beyond those that may wait for their first step: those that run, of all groups,
and those whose end waits to be written, 2 KB each. So one stream can fill the queue, and is told so.
"""

_log = logging.getLogger(__name__)


class _OpenRequest:
    """One request of a stream: all that is kept of it once it has an end to tell."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


class ManyGenerations:
    """The requests of one GenerateMany stream."""

    def __init__(
        self,
        generator: Generator,
        *,
        write: Callable[[pb.GenerateManyResponse], Awaitable[None]],
        seconds_left: Callable[[], float | None],
        max_open: int,
    ) -> None:
        """Serve one stream that is written by ``write``.

        Args:
            generator: Runs each request.
            write: Writes one message to the client, and returns when the client has room for more.
            seconds_left: Time until the client's deadline; None without one.
            max_open: Requests whose end is not written, at most; one more waits, and all behind it.
        """
        self._generator = generator
        self._write_to_stream = write
        self._seconds_left = seconds_left
        self._places = StreamPlaces(max_open)
        self._write_lock = asyncio.Lock()
        self._running: dict[str, _OpenRequest] = {}
        """By id; of two requests with one id, the one that has not told its end yet."""

    async def run(self, messages: AsyncIterator[pb.GenerateManyRequest | InvalidRequestError]) -> None:
        """Take requests until the client closes its side, then let the running ones end.

        Args:
            messages: What the client sent; in the place of a message that cannot be read, the error.

        Raises:
            DrainingError: if the server stops, once no request of the stream is open.
        """
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(messages, group))
            draining = group.create_task(self._wait_drained())
            await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
            is_drained = not reading.done()
            reading.cancel()
            draining.cancel()
            if not is_drained:
                await reading  # a write whose client is gone has cancelled it
        if is_drained:
            raise DrainingError("the server is stopping and takes no new requests")

    async def _wait_drained(self) -> None:
        await self._generator.open_requests.wait_draining()
        await self._places.wait_empty()

    async def _read(
        self, messages: AsyncIterator[pb.GenerateManyRequest | InvalidRequestError], group: asyncio.TaskGroup
    ) -> None:
        async for message in messages:
            if isinstance(message, InvalidRequestError):
                await self._write_error("", message)
                continue
            try:
                await self._take(message, group)
            except StepwireError as error:
                await self._write_error(message.generate.request_id, error)

    async def _take(self, message: pb.GenerateManyRequest, group: asyncio.TaskGroup) -> None:
        match message.WhichOneof("action"):
            case "generate":
                await self._places.wait_room()
                one = self._register(message.generate.request_id)
                self._places.take()
                group.create_task(self._run_one(one, message.generate))
            case "abort_request_id":
                if message.abort_request_id in self._running:
                    self._generator.abort(message.abort_request_id)
            case _:
                raise InvalidRequestError.of("action", None, "be one of generate and abort_request_id")

    def _register(self, request_id: str) -> _OpenRequest:
        if not request_id:
            raise InvalidRequestError.of("request_id", "", "be set on a GenerateMany stream")
        check_request_id("request_id", request_id)
        if request_id in self._running:
            raise DuplicateRequestError.of("request_id", request_id, "not be in use on the same stream")
        one = self._running[request_id] = _OpenRequest(request_id)
        return one

    def _forget(self, one: _OpenRequest) -> None:
        """Free the id: before its end is told, because the client may use it again once it reads that."""
        if self._running.get(one.request_id) is one:
            del self._running[one.request_id]

    async def _run_one(self, one: _OpenRequest, message: pb.GenerateRequest) -> None:
        """Run one request; whatever goes wrong with it is told in-band."""
        try:
            told = await self._generate(one, message)
            del message  # a client that does not read has the error wait, not its prompt
            if told is not None:
                await self._send(told)
        finally:
            self._places.give_back()

    async def _generate(
        self, one: _OpenRequest, message: pb.GenerateRequest
    ) -> pb.GenerateManyResponse | None:
        """Run one request, and return what is left to tell of it: its error, if that is its end."""
        try:
            self._generator.check_counts(convert.count_entries(message))
            await self._generator.run(
                convert.read_request(message),
                write=lambda told: self._write(one, told),
                seconds_left=self._seconds_left,
            )
        except Exception as error:
            if not is_expected(error):
                _log.exception("request %s failed", one.request_id)
            self._forget(one)
            return _error_response(one.request_id, error)
        return None

    async def _write(self, one: _OpenRequest, told: Told) -> None:
        if isinstance(told.output, Final):
            self._forget(one)
        await self._send(convert.write_many_response(told))

    async def _write_error(self, request_id: str, error: Exception) -> None:
        await self._send(_error_response(request_id, error))

    async def _send(self, response: pb.GenerateManyResponse) -> None:
        async with self._write_lock:
            await self._write_to_stream(response)


def _error_response(request_id: str, error: Exception) -> pb.GenerateManyResponse:
    code, message = status_of(error)
    told = pb.RequestError(
        code=code.value[0],
        message=message,
        is_resumable=isinstance(error, RequestInterruptedError),
        retry_after_ms=retry_after_ms(error),
    )
    return pb.GenerateManyResponse(request_id=request_id, error=told)
