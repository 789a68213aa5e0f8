"""Which methods are registered with gRPC's server."""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from unittest.mock import Mock

import grpc
from grpc_health.v1 import health_pb2_grpc
from stepwire.v1.generation_service_pb2_grpc import (
    add_GenerationServiceServicer_to_server,
)

from scheduler_svc.frontend.registering import add_service


class Server:
    """Notes what is added."""

    def __init__(self) -> None:
        self.generic: list[grpc.GenericRpcHandler] = []
        self.registered: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.generic += handlers

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, Any]) -> None:
        self.registered += [f"{service_name}/{name}" for name in handlers]


def test_what_comes_in_floods_and_what_asks_how_the_server_is_have_queues_of_their_own() -> None:
    server = Server()
    for add in (add_GenerationServiceServicer_to_server, health_pb2_grpc.add_HealthServicer_to_server):
        add_service(add, Mock(), server=cast("grpc.aio.Server", server))
    names = {name.rpartition("/")[2] for name in server.registered}
    # Behind thousands of calls of one that is not here, for example of Abort, none of these may wait.
    assert names == {"Generate", "GetServerState", "Check"}


def test_all_methods_are_found_by_name() -> None:
    server = Server()
    add_service(add_GenerationServiceServicer_to_server, Mock(), server=cast("grpc.aio.Server", server))
    (handler,) = server.generic
    names = ("Generate", "GenerateMany", "Abort", "GetServerState", "Tokenize")
    for name in names:
        details = cast("grpc.HandlerCallDetails", Details(f"/stepwire.v1.GenerationService/{name}"))
        assert handler.service(details) is not None, name


class Details:
    """What gRPC tells of a call."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()
