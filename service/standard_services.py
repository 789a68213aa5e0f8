"""Health and reflection, whose servicers come out of gRPC's packages, refuse what they cannot read.

By themselves they would end such a call as UNKNOWN, with a traceback in the log for whoever sends bytes.
Knows nothing about what their messages mean.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from service.handler_kinds import kind_of
from service.status_messages import shortened

_PACKAGE = "/grpc."
Check: TypeAlias = Callable[[Any, Any], Awaitable[None]]
"""Ends a call, given its context, where an error stands in the place of its request."""
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def is_standard(method: str) -> bool:
    """Whether a method, such as /grpc.health.v1.Health/Check, is one of those services'."""
    return method.startswith(_PACKAGE)


async def refuse_unreadable(request: Any, context: Any) -> None:
    """End the call as INVALID_ARGUMENT where an error stands in the place of its request."""
    if isinstance(request, Exception):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, shortened(str(request)))


def refusing_unreadable(
    handler: _Handler, deserialize: Callable[[bytes], Any], *, check: Check = refuse_unreadable
) -> _Handler:
    """Return a handler of the same kind that refuses errors in the place of messages.

    Args:
        handler: One of those services': unary, writing to its context, or a generator over a stream.
        deserialize: Gives a message, or an error in its place.
        check: Ends a call with such an error.
    """
    behaviour, make = kind_of(handler)
    checking = _checking_each if handler.request_streaming else _checking
    return make(
        checking(behaviour, check),
        request_deserializer=deserialize,
        response_serializer=handler.response_serializer,
    )


def _checking(behaviour: Any, check: Check) -> Callable[[Any, Any], Any]:
    async def call(request: Any, context: Any) -> Any:
        await check(request, context)
        return await behaviour(request, context)

    return call


def _checking_each(behaviour: Any, check: Check) -> Callable[[Any, Any], Any]:
    async def checked(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            await check(request, context)
            yield request

    async def generate(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for response in behaviour(checked(requests, context), context):
            yield response

    return generate
