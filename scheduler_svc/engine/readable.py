"""Messages that cannot be read, turned into a refusal.

gRPC would end the call as UNKNOWN, with a traceback in the log. Instead the error takes the message's
place, and the servicer refuses it. Knows nothing about what messages mean.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

Message = TypeVar("Message")


class UnreadableMessageError(ValueError):
    """Bytes that are no message of the method's."""


class ReadableMessages(grpc.aio.ServerInterceptor):
    """Has every method handed an UnreadableMessageError in the place of what cannot be read."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler with another deserializer."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        kinds: tuple[tuple[Any, Callable[..., grpc.RpcMethodHandler[Any, Any]]], ...] = (
            (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
            (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
            (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
            (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
        )
        behaviour, make = next(kind for kind in kinds if kind[0] is not None)
        return make(
            behaviour,
            request_deserializer=_handing_over(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


async def readable(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Pass messages on; raise the error that stands in the place of one."""
    async for message in messages:
        yield checked(message)


def checked(message: Message) -> Message:
    """Return a message; raise the error that stands in its place."""
    if isinstance(message, UnreadableMessageError):
        raise message
    return message


def _handing_over(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return UnreadableMessageError(f"the message cannot be read: {error}")

    return read
