"""The engine's gRPC methods: one Attach stream a front end, and the state for people.

Check, convert, post: knows nothing about what becomes of a request.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.engine.v1.engine_service_pb2_grpc import EngineServiceServicer

from scheduler_svc.engine.convert_cache import cache_batch_to_pb
from scheduler_svc.engine.convert_frontend import batch_from_pb, info_to_pb, outputs_to_pb, state_to_pb
from scheduler_svc.engine.limits import PROTOCOL_VERSION
from scheduler_svc.engine.loop import Engine
from scheduler_svc.engine.mailboxes import Outbox
from scheduler_svc.engine.owners import FrontendOutbox
from scheduler_svc.engine.tasks import run_until_first
from scheduler_svc.engine.values import CacheBatch, EngineInfo, FlushAsked, FrontendGone
from service.readable import checked, readable
from service.status_messages import shortened

_log = logging.getLogger(__name__)

MAX_OUTBOX_MESSAGES = 8192
"""What a front end may leave unread: 8 s of steps of 1 ms each, 40 MB at 256 rows."""

_AttachContext = grpc.aio.ServicerContext[pb.AttachRequest, pb.AttachResponse]
_WatchContext = grpc.aio.ServicerContext[pb.WatchPrefixCachesRequest, pb.WatchPrefixCachesResponse]
_FlushContext = grpc.aio.ServicerContext[pb.FlushPrefixCachesRequest, pb.FlushPrefixCachesResponse]
_StateContext = grpc.aio.ServicerContext[pb.GetEngineStateRequest, pb.GetEngineStateResponse]


class EngineServicer(EngineServiceServicer):
    """Joins front ends' streams to the engine."""

    def __init__(self, engine: Engine, *, max_outbox_messages: int = MAX_OUTBOX_MESSAGES) -> None:
        self._engine = engine
        self._max_outbox_messages = max_outbox_messages

    # A coroutine that writes, where the stubs know generators only: a generator that waits for a
    # front end to read could not be cut off.
    async def Attach(  # type: ignore[override] # noqa: N802
        self, request_iterator: AsyncIterator[pb.AttachRequest], context: _AttachContext
    ) -> None:
        """Serve one front end until either side ends the stream."""
        requests = readable(request_iterator)
        try:
            first = await anext(requests, pb.AttachRequest())
        except ValueError as error:
            await _refuse(context, error)
        if first.hello.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the first message must be a hello of protocol version {PROTOCOL_VERSION}, "
                f"but has version {first.hello.protocol_version}",
            )
        # A first write that is cut off would leave gRPC in doubt whether these were sent: it sends them
        # again with the status, which fails, and the call never ends for the front end.
        await context.send_initial_metadata(())
        outbox: FrontendOutbox = Outbox(self._max_outbox_messages)
        owner = self._engine.attach(outbox)
        _log.info("front end %d attached as owner %d", first.hello.frontend_index, owner)
        try:
            self._take(first, owner)
            await run_until_first(self._read(requests, owner), _write(outbox, context), outbox.overflowed())
        except ValueError as error:
            _log.error("front end %d broke the protocol: %s", first.hello.frontend_index, error)
            await _refuse(context, error)
        finally:
            self._engine.post(FrontendGone(owner=owner))
            _log.info("front end %d detached", first.hello.frontend_index)
        if outbox.has_overflowed:
            await self._cut_off(context)

    async def GetEngineState(  # noqa: N802
        self, request: pb.GetEngineStateRequest, context: _StateContext
    ) -> pb.GetEngineStateResponse:
        """Tell the engine's counts."""
        try:
            checked(request)
        except ValueError as error:
            await _refuse(context, error)
        return state_to_pb(self._engine.state())

    async def WatchPrefixCaches(  # type: ignore[override] # noqa: N802
        self, request: pb.WatchPrefixCachesRequest, context: _WatchContext
    ) -> None:
        """Tell what the prefix caches gain and lose, until either side ends the stream."""
        try:
            checked(request)
        except ValueError as error:
            await _refuse(context, error)
        await context.send_initial_metadata(())  # as in Attach
        feed: Outbox[CacheBatch] = Outbox(self._max_outbox_messages)
        with self._engine.cache_feeds.attached(feed):
            await run_until_first(_write_feed(feed, context), feed.overflowed())
        await self._cut_off(context)

    async def FlushPrefixCaches(  # noqa: N802
        self, request: pb.FlushPrefixCachesRequest, context: _FlushContext
    ) -> pb.FlushPrefixCachesResponse:
        """Make the prefix caches forget all, once no request lives."""
        try:
            checked(request)
        except ValueError as error:
            await _refuse(context, error)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._engine.post(FlushAsked(answer=answer, is_patient=request.timeout_ns > 0))
        try:
            # Without a wait the loop answers at once.
            num_live = await asyncio.wait_for(answer, request.timeout_ns / 1e9 or None)
        except TimeoutError:
            num_live = max(1, self._engine.num_live)  # 0 would say that they were flushed
        return pb.FlushPrefixCachesResponse(num_live=num_live)

    async def _cut_off(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        limit = f"{self._max_outbox_messages} messages, the most that may gather"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the front end left unread {limit}")

    async def _read(self, requests: AsyncIterator[pb.AttachRequest], owner: int) -> None:
        async for message in requests:
            self._take(message, owner)

    def _take(self, message: pb.AttachRequest, owner: int) -> None:
        batch = batch_from_pb(message, owner, now_ns=time.monotonic_ns(), draw_seed=_draw_seed)
        self._engine.post(batch)


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], error: ValueError) -> NoReturn:
    """End a call, with as much of the reason as trailers hold."""
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, shortened(str(error)))


async def _write(outbox: FrontendOutbox, context: _AttachContext) -> None:
    while True:
        message = await outbox.get()
        await context.write(
            info_to_pb(message) if isinstance(message, EngineInfo) else outputs_to_pb(message)
        )


async def _write_feed(feed: Outbox[CacheBatch], context: _WatchContext) -> None:
    while True:
        await context.write(cache_batch_to_pb(await feed.get()))


def _draw_seed() -> int:
    return secrets.randbits(64)
