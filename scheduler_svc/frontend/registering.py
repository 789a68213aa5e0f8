"""Which methods gRPC's server has a queue of calls for: floods' own, and those that ask how the server is.

grpc.aio waits for the next call of all registered methods at once, and anew for each call that comes: with a
dozen of them that is 20 us of the 130 us that taking in a call costs. Methods that are not registered share
one queue and are found by name: what asks how the server is would stand there behind thousands of calls of
Abort or Tokenize, for seconds. Knows nothing about what methods do.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import grpc

_REGISTERED = frozenset({"Generate", "Check", "HealthCheck", "GetServerState"})

Servicer = TypeVar("Servicer")


class Services(Protocol):
    """What services are added to: a server, or what stands for it."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        """Add what finds handlers by name."""

    def add_registered_method_handlers(
        self, service_name: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], /
    ) -> None:
        """Add methods with queues of their own."""


def add_service(
    add: Callable[[Servicer, grpc.aio.Server], None], servicer: Servicer, *, server: Services
) -> None:
    """Add a service to a server by what is generated for that, ``add_..._to_server``."""
    add(servicer, cast("grpc.aio.Server", _FewRegistered(server)))


class _FewRegistered:
    """Stands for the server where a service is added: what is generated registers all methods."""

    def __init__(self, server: Services) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self, service_name: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        chosen = {name: handler for name, handler in handlers.items() if name in _REGISTERED}
        self._server.add_registered_method_handlers(service_name, chosen)
