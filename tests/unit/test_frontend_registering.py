"""Which methods are registered with gRPC's server."""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from unittest.mock import Mock

import grpc
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


def test_only_generate_has_a_queue_of_its_own_and_all_methods_are_found_by_name() -> None:
    server, servicer = Server(), Mock()
    add_service(add_GenerationServiceServicer_to_server, servicer, server=cast("grpc.aio.Server", server))
    assert server.registered == ["stepwire.v1.GenerationService/Generate"]
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
