"""The front end's calls about the engine's prefix caches: to see what they gain and lose, and to flush them.

Knows nothing about requests, nor about who wants to know.
"""

from collections.abc import AsyncGenerator
from typing import NoReturn

import grpc
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2_grpc

from scheduler_svc.errors import SlowConsumerError, WorkerUnavailableError

_ANSWER_SECONDS = 10.0
"""How long an engine may take to answer, beside what it was asked to wait."""


class PrefixCacheLink:
    """Calls of one front end."""

    def __init__(self, stub: "engine_service_pb2_grpc.EngineServiceAsyncStub") -> None:
        self._stub = stub

    async def watch(self) -> AsyncGenerator[pb.WatchPrefixCachesResponse, None]:
        """Yield what the prefix caches gain and lose, until the reader goes or the engine ends it.

        Raises:
            SlowConsumerError: if too much was left unread.
            WorkerUnavailableError: if the engine is gone.
        """
        call = self._stub.WatchPrefixCaches(pb.WatchPrefixCachesRequest())
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            _raise(error)
        finally:
            call.cancel()
        raise WorkerUnavailableError("the engine is stopping")

    async def flush(self, timeout_seconds: float) -> int:
        """Have the prefix caches forget all; return how many requests live instead, 0 where it was done.

        Raises:
            WorkerUnavailableError: if the engine does not answer.
        """
        request = pb.FlushPrefixCachesRequest(timeout_ns=int(timeout_seconds * 1e9))
        try:
            response = await self._stub.FlushPrefixCaches(request, timeout=timeout_seconds + _ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            _raise(error)
        return response.num_live


def _raise(error: grpc.aio.AioRpcError) -> NoReturn:
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise SlowConsumerError(f"events were not read: {error.details()}") from error
    raise WorkerUnavailableError(f"the engine does not answer: {error.details()}") from error
