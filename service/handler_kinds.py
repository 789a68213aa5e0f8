"""What kind of method a gRPC handler serves: unary or streaming, either way. Knows nothing about methods."""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def kind_of(handler: _Handler) -> tuple[Any, Callable[..., _Handler]]:
    """Return a handler's behaviour, and what makes handlers of its kind."""
    kinds: tuple[tuple[Any, Callable[..., _Handler]], ...] = (
        (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    )
    return next(kind for kind in kinds if kind[0] is not None)
