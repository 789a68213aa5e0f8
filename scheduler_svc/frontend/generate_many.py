"""GenerateMany: many generations multiplexed on one bidi stream, each with an end of its own.

Errors of one request are told in-band and leave the stream open. Knows nothing about how one
generation runs (generate.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from stepwire.v1 import generation_service_pb2 as pb

from scheduler_svc.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    RequestInterruptedError,
    StepwireError,
)
from scheduler_svc.frontend import convert
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.status import is_expected, retry_after_ms, status_of
from scheduler_svc.frontend.values import Final, Told

_log = logging.getLogger(__name__)


class ManyGenerations:
    """The requests of one GenerateMany stream."""

    def __init__(
        self,
        generator: Generator,
        *,
        write: Callable[[pb.GenerateManyResponse], Awaitable[None]],
        seconds_left: Callable[[], float | None],
    ) -> None:
        """Serve one stream that is written by ``write``."""
        self._generator = generator
        self._write_to_stream = write
        self._seconds_left = seconds_left
        self._write_lock = asyncio.Lock()
        self._running: dict[str, pb.GenerateRequest] = {}
        """By id; of two requests with one id, the one that has not told its end yet."""

    async def run(self, messages: AsyncIterator[pb.GenerateManyRequest | InvalidRequestError]) -> None:
        """Take requests until the client closes its side, then let the running ones end.

        Args:
            messages: What the client sent; in the place of a message that cannot be read, the error.
        """
        async with asyncio.TaskGroup() as group:
            async for message in messages:
                if isinstance(message, InvalidRequestError):
                    await self._write_error("", message)
                    continue
                try:
                    self._take(message, group)
                except StepwireError as error:
                    await self._write_error(message.generate.request_id, error)

    def _take(self, message: pb.GenerateManyRequest, group: asyncio.TaskGroup) -> None:
        match message.WhichOneof("action"):
            case "generate":
                request = message.generate
                self._register(request)
                group.create_task(self._run_one(request))
            case "abort_request_id":
                if message.abort_request_id in self._running:
                    self._generator.abort(message.abort_request_id)
            case _:
                raise InvalidRequestError.of("action", None, "be one of generate and abort_request_id")

    def _register(self, message: pb.GenerateRequest) -> None:
        request_id = message.request_id
        if not request_id:
            raise InvalidRequestError.of("request_id", "", "be set on a GenerateMany stream")
        if request_id in self._running:
            raise DuplicateRequestError.of("request_id", request_id, "not be in use on the same stream")
        self._running[request_id] = message

    def _forget(self, message: pb.GenerateRequest) -> None:
        """Free the id: before its end is told, because the client may use it again once it reads that."""
        if self._running.get(message.request_id) is message:
            del self._running[message.request_id]

    async def _run_one(self, message: pb.GenerateRequest) -> None:
        """Run one request; whatever goes wrong with it is told in-band."""
        try:
            self._generator.check_counts(convert.count_entries(message))
            await self._generator.run(
                convert.read_request(message),
                write=lambda told: self._write(message, told),
                seconds_left=self._seconds_left,
            )
        except Exception as error:
            if not is_expected(error):
                _log.exception("request %s failed", message.request_id)
            self._forget(message)
            await self._write_error(message.request_id, error)

    async def _write(self, message: pb.GenerateRequest, told: Told) -> None:
        if isinstance(told.output, Final):
            self._forget(message)
        await self._send(convert.write_many_response(told))

    async def _write_error(self, request_id: str, error: Exception) -> None:
        code, message = status_of(error)
        told = pb.RequestError(
            code=code.value[0],
            message=message,
            is_resumable=isinstance(error, RequestInterruptedError),
            retry_after_ms=retry_after_ms(error),
        )
        await self._send(pb.GenerateManyResponse(request_id=request_id, error=told))

    async def _send(self, response: pb.GenerateManyResponse) -> None:
        async with self._write_lock:
            await self._write_to_stream(response)
