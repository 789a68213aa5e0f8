"""Has gRPC's server wait for many calls of Generate at once, from when many are open.

grpc.aio asks for the next call of a method when it has taken in the last one, which is four rounds of the
event loop later: where others have much to write in each round, a thousand new calls wait for seconds, for
no lack of time. A taker does with a call what the server's own loop does, beside it. What that takes of
grpc's inner parts is looked at first: where it is another than we know, there are no takers. Knows nothing
about what calls do.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

NUM_TAKERS = 32
"""Of each method: a flood of 1,000 streams costs the front end 0.32 to 0.65 s of CPU until all are queued,
0.45 to 0.8 s with 8 of them and 0.8 to 1.5 s with none (two busy cores of a Xeon).
"""
_TAKEN_NAME = "Generate"
_KNOWN_PARAMETERS: dict[str, list[str]] = {
    "_handle_rpc": [
        "method_name",
        "method_resolver",
        "interceptors",
        "rpc_state",
        "loop",
        "concurrency_exceeded",
    ],
    "_schedule_rpc_coro": ["rpc_coro", "rpc_state", "loop", "method_name"],
    "_request_registered_call": ["self", "method"],
}

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_log = logging.getLogger(__name__)


class CallTakers:
    """Stands for the server where services are added, and notes the methods whose calls come in floods."""

    def __init__(self, server: grpc.aio.Server, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        """Take calls beside the loop of ``server``, which was made with these ``interceptors``."""
        self._server = server
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, _Handler] = {}
        self._takers: list[asyncio.Task[None]] = []
        self._calls: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add them to the server."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, _Handler]) -> None:
        """Add them to the server."""
        self._server.add_registered_method_handlers(service_name, dict(handlers))
        if _TAKEN_NAME in handlers:
            self._handlers[f"/{service_name}/{_TAKEN_NAME}"] = handlers[_TAKEN_NAME]

    def start(self) -> None:
        """Wait for calls, until the server stops; it must have started."""
        if not is_grpc_known():
            _log.warning("grpc %s takes calls in otherwise than is known: one by one", grpc.__version__)
            return
        for method, handler in self._handlers.items():
            for _ in range(NUM_TAKERS):
                taker = asyncio.create_task(self._take_calls(method, handler))
                taker.add_done_callback(_tell_failure)
                self._takers.append(taker)

    async def wait_ended(self) -> None:
        """Wait until no taker is left: the server must have stopped."""
        await asyncio.gather(*self._takers, return_exceptions=True)

    async def _take_calls(self, method: str, handler: _Handler) -> None:
        core: Any = self._server._server  # type: ignore[attr-defined]
        loop, name, resolver = asyncio.get_running_loop(), method.encode(), _Found(handler)
        while core.is_running():
            try:
                state = await core._request_registered_call(name)
            except cygrpc._RequestCallError:  # the server stops, or the call was gone before it came
                continue
            handling = cygrpc._handle_rpc(method, resolver, self._interceptors, state, loop, False)
            call = loop.create_task(cygrpc._schedule_rpc_coro(handling, state, loop, method))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)


def _tell_failure(taker: asyncio.Task[None]) -> None:
    """Log why a taker ended, if not because the server stops: the server itself still takes calls."""
    failure = None if taker.cancelled() else taker.exception()
    if failure is not None:
        _log.error("a taker of calls has ended", exc_info=failure)


class _Found:
    """Where gRPC looks for a call's handler: it is found already."""

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler

    def resolve_handler(self, _details: grpc.HandlerCallDetails) -> _Handler:
        return self._handler


def is_grpc_known() -> bool:
    """Tell whether the parts of grpc that takers use take what they did when this was written."""
    owners: dict[str, Any] = {"_request_registered_call": cygrpc.AioServer}
    return all(
        _parameters(getattr(owners.get(name, cygrpc), name, None)) == known
        for name, known in _KNOWN_PARAMETERS.items()
    )


def _parameters(function: Callable[..., Any] | None) -> list[str] | None:
    if function is None:
        return None
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # it tells none
        return None
