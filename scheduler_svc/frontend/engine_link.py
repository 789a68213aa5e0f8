"""One stream to the engine: requests, ends and aborts out, outputs in, each to its request's stream.

When the engine's stream breaks, all open requests end with an error and the link attaches again.
Knows nothing about clients, text or limits.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2_grpc
from stepwire.v1 import generation_service_pb2

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import RequestInterruptedError, StepwireError, WorkerUnavailableError
from scheduler_svc.frontend import engine_convert
from scheduler_svc.frontend.meter import TokenMeter
from scheduler_svc.frontend.outbox import Outbox
from scheduler_svc.frontend.prefix_cache_link import PrefixCacheLink
from scheduler_svc.frontend.streams import Verdict
from scheduler_svc.frontend.values import CheckedRequest, Ended, EngineFacts, RequestStatus, TokenLogprobs

_PROTOCOL_VERSION = 1
_RECONNECT_SECONDS = 0.1
_GATHER_SECONDS = 0.004
"""What comes this soon after a message goes with the next: a message costs each side 100 us or more."""
_STATE_TIMEOUT_SECONDS = 10.0
_CHANNEL_OPTIONS = [
    # Both ends are ours; what clients may send is limited where it comes in.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

_AttachCall = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]
_log = logging.getLogger(__name__)


class OutputSink(Protocol):
    """Where the outputs of one request go."""

    def started(self, *, num_cached_tokens: int, queue_time_ns: int) -> None:
        """Note what the engine told with the request's first step."""

    def told_status(self, status: RequestStatus) -> None:
        """Take the engine's word of what the request does."""

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Verdict | None:
        """Take one token; return a verdict if it ends the request here."""

    def ended(self, ended: Ended) -> None:
        """Take the engine's word that the request ended without an error."""

    def failed(self, error: StepwireError) -> None:
        """End with an error."""


class EngineLink:
    """The front end's side of Attach, for as long as the front end runs."""

    def __init__(
        self,
        socket_path: str,
        *,
        frontend_index: int,
        on_facts: Callable[[EngineFacts | None], Awaitable[None]],
        meter: TokenMeter,
    ) -> None:
        """Prepare a link; ``on_facts`` is told what the engine tells of itself, None when it is gone."""
        self._channel = grpc.aio.insecure_channel(f"unix:{socket_path}", options=_CHANNEL_OPTIONS)
        self._stub = engine_service_pb2_grpc.EngineServiceStub(self._channel)
        self.prefix_caches = PrefixCacheLink(self._stub)
        """To see into the engine's prefix caches, and to flush them."""
        self._frontend_index = frontend_index
        self._on_facts = on_facts
        self._meter = meter
        self._outbox = Outbox()
        self._sinks: dict[int, OutputSink] = {}
        self._last_handle = 0
        self.attached = asyncio.Event()
        """Set while the engine answers."""

    async def run(self) -> None:
        """Attach, and attach again whenever the stream breaks; ends by cancellation only."""
        while True:
            try:
                reason = await self._attach()
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            _log.warning("the engine's stream ended (%s); attaching again", reason)
            await self._detach(reason)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    def submit(self, checked: CheckedRequest, sink: OutputSink, *, timeout_ns: int, asked_ns: int) -> int:
        """Send a request to the engine; return its handle.

        Args:
            checked: The request.
            sink: Is told its outputs.
            timeout_ns: Time until the client's deadline; 0: none.
            asked_ns: When the client's call came, on the monotonic clock.

        Raises:
            WorkerUnavailableError: if the engine is not there.
        """
        if not self.attached.is_set():
            raise WorkerUnavailableError("the engine is not there: try again later")
        self._last_handle += 1
        self._sinks[self._last_handle] = sink
        self._outbox.add_request(
            engine_convert.write_new_request(
                checked, handle=self._last_handle, timeout_ns=timeout_ns, asked_ns=asked_ns
            )
        )
        return self._last_handle

    def abandon(self, handle: int) -> None:
        """Tell the engine that nobody waits for a request; nothing happens if it ended."""
        if self._sinks.pop(handle, None) is not None:
            self._outbox.add_end(engine_convert.write_end(handle, FinishReason.DISCONNECT))

    def abort(self, request_id: str) -> None:
        """Abort a request of any front end; its own stream is told its end."""
        if self.attached.is_set():  # without an engine nothing runs
            self._outbox.add_abort(request_id, asked_ns=time.monotonic_ns())

    def fail_all(self, error: StepwireError) -> None:
        """End all open requests with an error; the engine is not told."""
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.failed(error)

    async def get_state(self) -> generation_service_pb2.GetServerStateResponse:
        """Ask the engine for its state.

        Raises:
            WorkerUnavailableError: if the engine does not answer.
        """
        try:
            response = await self._stub.GetEngineState(
                pb.GetEngineStateRequest(), timeout=_STATE_TIMEOUT_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise WorkerUnavailableError(f"the engine does not answer: {error.details()}") from error
        return response.state

    async def _attach(self) -> str:
        """Run one stream; return why it ended."""
        call = self._stub.Attach(wait_for_ready=True)
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            await reader
        finally:
            reader.cancel()
            writer.cancel()
            call.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        return "closed by the engine"

    async def _write(self, call: _AttachCall) -> None:
        hello = pb.FrontendHello(protocol_version=_PROTOCOL_VERSION, frontend_index=self._frontend_index)
        try:
            await call.write(pb.AttachRequest(hello=hello))
            while True:
                await call.write(await self._outbox.take())
                await asyncio.sleep(_GATHER_SECONDS)
        except asyncio.InvalidStateError:  # the stream is over: the reader tells why
            return

    async def _read(self, call: _AttachCall) -> None:
        while isinstance(message := await call.read(), pb.AttachResponse):  # else EOF
            if message.WhichOneof("message") == "outputs":
                self._dispatch(message.outputs)
            else:
                await self._on_facts(engine_convert.read_facts(message.info))
                self.attached.set()

    async def _detach(self, reason: str) -> None:
        self.attached.clear()
        self._outbox.clear()
        self.fail_all(
            RequestInterruptedError(f"the engine is gone ({reason}): go on from the tokens told so far")
        )
        await self._on_facts(None)

    def _dispatch(self, outputs: pb.StepOutputs) -> None:
        sinks = self._sinks
        for handle, num_cached_tokens, queue_time_ns in engine_convert.read_started(outputs):
            if handle in sinks:
                sinks[handle].started(num_cached_tokens=num_cached_tokens, queue_time_ns=queue_time_ns)
        for handle, status in engine_convert.read_statuses(outputs):
            if handle in sinks:
                sinks[handle].told_status(status)
        tokens = engine_convert.read_tokens(outputs)
        logprobs = engine_convert.read_logprobs(outputs) if outputs.logprob_counts else [None] * len(tokens)
        self._meter.begin_message()
        for (handle, token_id), token_logprobs in zip(tokens, logprobs, strict=True):
            sink = sinks.get(handle)
            if sink is None:  # ended here while the token was on its way
                continue
            verdict = sink.push(token_id, token_logprobs)
            if verdict is not None:
                del sinks[handle]
                self._outbox.add_end(
                    engine_convert.write_end(
                        handle, verdict.reason, num_output_tokens=verdict.num_output_tokens
                    )
                )
        self._meter.end_message()
        for message in outputs.ended:
            self._end(message)

    def _end(self, message: pb.EndedRequest) -> None:
        sink = self._sinks.pop(message.handle, None)
        if sink is None:
            return
        ended = engine_convert.read_ended(message)
        if isinstance(ended, StepwireError):
            sink.failed(ended)
        else:
            sink.ended(ended)
