"""Fixtures of the tests that speak gRPC.

Knows nothing about any test: fake_generation_service.py tells what the fake server answers.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from stepwire.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server

from tests.rpc.fake_generation_service import FakeGenerationService


@pytest.fixture
def fake_service() -> FakeGenerationService:
    """Return the service behind ``fake_address``, to be scripted before the first call."""
    return FakeGenerationService()


@pytest.fixture
def fake_address(fake_service: FakeGenerationService) -> Iterator[str]:
    """Serve ``fake_service`` on a free port, with the health service, and yield host:port."""
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    add_GenerationServiceServicer_to_server(fake_service, server)
    health_servicer = health.HealthServicer()
    health_servicer.set("ready", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()
