"""Health and reflection, whose servicers come out of gRPC's packages, refuse what they cannot read.

By themselves they would end such a call as UNKNOWN, with a traceback in the log for whoever sends bytes.
Knows nothing about what their messages mean.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc

from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.status import status_of
from service.readable import kind_of

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def refusing_unreadable(handler: _Handler, deserialize: Callable[[bytes], Any]) -> _Handler:
    """Return a handler of the same kind that refuses errors in the place of messages.

    Args:
        handler: One of those services': unary, writing to its context, or a generator over a stream.
        deserialize: Gives a message, or an InvalidRequestError in its place.
    """
    behaviour, make = kind_of(handler)
    checking = _checking_each if handler.request_streaming else _checking
    return make(
        checking(behaviour), request_deserializer=deserialize, response_serializer=handler.response_serializer
    )


def _checking(behaviour: Any) -> Callable[[Any, Any], Any]:
    async def call(request: Any, context: Any) -> Any:
        await _check(request, context)
        return await behaviour(request, context)

    return call


def _checking_each(behaviour: Any) -> Callable[[Any, Any], Any]:
    async def checked(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            await _check(request, context)
            yield request

    async def generate(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for response in behaviour(checked(requests, context), context):
            yield response

    return generate


async def _check(request: Any, context: Any) -> None:
    if isinstance(request, InvalidRequestError):
        with cancelled_where_client_is_gone():
            await context.abort(*status_of(request))
