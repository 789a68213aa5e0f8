"""The hot path: one request through a raw gRPC stub, noting when tokens came and how many.

Does as little a message as it can, because at 20,000 messages a second its own cost would be what
is measured. Knows nothing about processes or figures.
"""

import asyncio
import time
from array import array
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Protocol

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client.aio_calls import WRITTEN_TOO_LATE, has_lost_its_status
from stepwire_client.channel import channel_options
from stepwire_client.errors import error_of_number
from stepwire_client.security import Metadata, Tls, open_aio_channel

from stepwire_cli.bench.jobs import Job
from stepwire_cli.bench.records import WRONG_NUM_TOKENS, RequestRecord

_SERVICE = "/stepwire.v1.GenerationService"
_BROKEN_REASONS = (types_pb.FINISH_REASON_ABORT, types_pb.FINISH_REASON_ERROR)


@dataclass(slots=True)
class OpenRequest:
    """What is noted while a request runs."""

    job: Job
    sent: float = 0.0
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    final: types_pb.FinalOutput | None = None
    error: str = ""
    error_message: str = ""

    def record(self, start: float) -> RequestRecord:
        """Return what is kept of it, with times from ``start``."""
        error, message = self.error, self.error_message
        if not error:
            error, message = self._find_fault()
        usage = self.final.usage if self.final is not None else types_pb.Usage()
        due = self.job.due_seconds
        return RequestRecord(
            index=self.job.index,
            num_expected_tokens=self.job.num_output_tokens,
            due_seconds=self.sent - start if due is None else due,
            sent_seconds=self.sent - start,
            ended_seconds=self.ended - start,
            message_seconds=array("d", [moment - start for moment in self.times]),
            message_num_tokens=array("L", self.counts),
            num_prompt_tokens=usage.num_prompt_tokens,
            num_cached_tokens=usage.num_cached_tokens,
            error=error,
            error_message=message,
        )

    def _find_fault(self) -> tuple[str, str]:
        """Name what is wrong with a request whose status was OK."""
        if self.final is None:
            return WRONG_NUM_TOKENS, "the stream ended without a final message"
        if self.final.finish_reason in _BROKEN_REASONS:
            reason = types_pb.FinishReason.Name(self.final.finish_reason)
            return reason, f"{self.job.request_id} ended early"
        told, came, expected = (
            self.final.usage.num_output_tokens,
            sum(self.counts),
            self.job.num_output_tokens,
        )
        if not told == came == expected:
            return WRONG_NUM_TOKENS, f"{came} tokens came, {told} were told, {expected} asked for"
        return "", ""


class Streams(Protocol):
    """One way to run requests."""

    num_tokens: int
    """That came since the object was made."""

    async def run(self, job: Job) -> OpenRequest:
        """Run one request to its end, good or bad; raises nothing for a failed one."""

    async def close(self) -> None:
        """End what is open, when all requests have ended."""


class GenerateStreams:
    """Each request on a stream of its own, over the channels in turn."""

    def __init__(
        self, channels: list[grpc.aio.Channel], timeout_seconds: float | None, *, metadata: Metadata = ()
    ) -> None:
        self._metadata = metadata
        self.num_tokens = 0
        self._timeout_seconds = timeout_seconds
        methods: list[Any] = [
            # No serializer: requests are bytes already.
            channel.unary_stream(
                f"{_SERVICE}/Generate", response_deserializer=service_pb.GenerateResponse.FromString
            )
            for channel in channels
        ]
        self._methods = cycle(methods)

    async def run(self, job: Job) -> OpenRequest:
        """Run one request to its end."""
        request, clock, end_of_stream = OpenRequest(job), time.monotonic, grpc.aio.EOF
        times, counts = request.times, request.counts
        request.sent = clock()
        call = next(self._methods)(job.payload, timeout=self._timeout_seconds, metadata=self._metadata)
        message = None
        try:
            while (message_or_end := await call.read()) is not end_of_stream:
                message = message_or_end
                if num_tokens := len(message.delta.token_ids):
                    times.append(clock())
                    counts.append(num_tokens)
                    self.num_tokens += num_tokens
        except grpc.aio.AioRpcError as error:
            request.error, request.error_message = error.code().name, error.details() or ""
        request.ended = clock()
        if message is not None and message.HasField("final"):
            request.final = message.final
        return request

    async def close(self) -> None:
        """Do nothing: each request ends its own stream."""


class ManyStreams:
    """All requests of a channel on one stream of GenerateMany."""

    def __init__(
        self, channels: list[grpc.aio.Channel], timeout_seconds: float | None, *, metadata: Metadata = ()
    ) -> None:
        self.num_tokens = 0
        self._streams = [
            _ManyStream(self, channel, timeout_seconds=timeout_seconds, metadata=metadata)
            for channel in channels
        ]
        self._turns = cycle(self._streams)

    async def run(self, job: Job) -> OpenRequest:
        """Run one request to its end."""
        return await next(self._turns).run(job)

    async def close(self) -> None:
        """Close the sending sides and wait for the servers' ends."""
        await asyncio.gather(*(stream.close() for stream in self._streams))


class _ManyStream:
    def __init__(
        self,
        owner: ManyStreams,
        channel: grpc.aio.Channel,
        *,
        timeout_seconds: float | None,
        metadata: Metadata,
    ) -> None:
        self._owner = owner
        method: Any = channel.stream_stream(
            f"{_SERVICE}/GenerateMany", response_deserializer=service_pb.GenerateManyResponse.FromString
        )
        self._call = method(timeout=timeout_seconds, metadata=metadata)
        self._may_write = asyncio.Lock()
        self._open: dict[str, tuple[OpenRequest, asyncio.Future[None]]] = {}
        self._end: tuple[str, str] | None = None
        """The status that the stream ended with."""
        self._reader = asyncio.create_task(self._read())

    async def run(self, job: Job) -> OpenRequest:
        request, has_ended = OpenRequest(job), asyncio.get_running_loop().create_future()
        request.sent = time.monotonic()
        self._open[job.request_id] = (request, has_ended)
        try:
            async with self._may_write:
                await self._call.write(job.payload)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            await self._reader  # its status is the stream's
            self._fail(job.request_id, *(self._end or (type(error).__name__, str(error))))
        await has_ended
        return request

    async def close(self) -> None:
        if self._end is None:
            await self._call.done_writing()
        await self._reader

    async def _read(self) -> None:
        end_of_stream, is_open = grpc.aio.EOF, self._open
        status = ("UNKNOWN", "the stream ended before its requests")
        try:
            while (message := await self._call.read()) is not end_of_stream:
                request, _ = is_open[message.request_id]
                if num_tokens := len(message.delta.token_ids):
                    request.times.append(time.monotonic())
                    request.counts.append(num_tokens)
                    self._owner.num_tokens += num_tokens
                elif message.HasField("final"):
                    request.final = message.final
                    self._settle(message.request_id)
                elif message.HasField("error"):
                    error = error_of_number(message.error.code, message.error.message)
                    assert error.code is not None, "made from a code"
                    self._fail(message.request_id, error.code.name, error.message)
        except grpc.aio.AioRpcError as error:
            status = _status_of(error)
        self._end = status
        for request_id in tuple(is_open):
            self._fail(request_id, *status)

    def _fail(self, request_id: str, error: str, message: str) -> None:
        if request_id in self._open:
            request, _ = self._open[request_id]
            request.error, request.error_message = error, message
            self._settle(request_id)

    def _settle(self, request_id: str) -> None:
        request, has_ended = self._open.pop(request_id)
        request.ended = time.monotonic()
        has_ended.set_result(None)


def _status_of(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """Return a stream's status and message; UNAVAILABLE where a write lost them."""
    details = error.details() or ""
    if has_lost_its_status(error.code(), details):
        return grpc.StatusCode.UNAVAILABLE.name, WRITTEN_TOO_LATE
    return error.code().name, details


def make_streams(
    channels: list[grpc.aio.Channel],
    *,
    is_many: bool,
    timeout_seconds: float | None,
    metadata: Metadata = (),
) -> Streams:
    """Return a fresh way to run the requests of one round."""
    kind = ManyStreams if is_many else GenerateStreams
    return kind(channels, timeout_seconds, metadata=metadata)


def open_channels(address: str, num_channels: int, *, tls: Tls | None = None) -> list[grpc.aio.Channel]:
    """Return channels with a connection of their own each, so that front ends share them."""
    return [open_aio_channel(address, tls, options=channel_options()) for _ in range(num_channels)]
