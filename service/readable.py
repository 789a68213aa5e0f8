"""Messages that cannot be read, turned into a refusal.

gRPC would end the call as UNKNOWN, with a traceback in the log. Instead an error takes the message's
place, and the servicer refuses it. Knows nothing about what messages mean, nor which error a service
refuses with.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError

from service.handler_kinds import kind_of
from service.standard_services import is_standard, refusing_unreadable

Message = TypeVar("Message")
MakeError = Callable[[str], Exception]
"""Makes the error that a service refuses with, of what it says."""
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ReadableMessages(grpc.aio.ServerInterceptor):
    """Has every method handed an error in the place of what cannot be read; health and reflection refuse."""

    def __init__(self, make_error: MakeError) -> None:
        self._make_error = make_error

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the handler with another deserializer."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        deserialize = handing_over(handler.request_deserializer, self._make_error)
        if is_standard(handler_call_details.method):
            return refusing_unreadable(handler, deserialize)
        behaviour, make = kind_of(handler)
        return make(
            behaviour, request_deserializer=deserialize, response_serializer=handler.response_serializer
        )


def handing_over(deserialize: Callable[[bytes], Any], make_error: MakeError) -> Callable[[bytes], Any]:
    """Return a deserializer that gives the error in the place of a message that cannot be read.

    An exception of its own would be UNKNOWN, and would end a stream of many requests.
    """

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return make_error(f"the message cannot be read: {error}")

    return read


async def readable(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Pass messages on; raise the error that stands in the place of one."""
    async for message in messages:
        yield checked(message)


def checked(message: Message) -> Message:
    """Return a message; raise the error that stands in its place."""
    if isinstance(message, Exception):
        raise message
    return message
