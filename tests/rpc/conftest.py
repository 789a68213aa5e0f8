"""Fixtures of the tests that speak gRPC: what several files of them start with.

A file that needs another model folder, front end or worker has a fixture of its own under the same
name. Knows nothing about any test: fake_generation_service.py tells what the fake server answers.
"""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from stepwire.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server

from tests.rpc.fake_generation_service import FakeGenerationService
from tests.rpc.frontend_bench import FrontendBench, running_frontend, write_model_folder
from tests.stand_in_worker import StandInWorker


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model for a front end, which needs no weights."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[FrontendBench]:
    """Run a front end with a fake engine behind it, and a client's channel to it."""
    async with running_frontend(folder, tmp_path, served_model_name="tiny", drain_seconds=0.2) as bench:
        yield bench


@pytest.fixture
async def worker() -> AsyncIterator[StandInWorker]:
    """Run a stand-in worker, which must have seen no fault at the end."""
    worker = StandInWorker()
    await worker.start()
    yield worker
    await worker.stop()
    assert worker.faults == []
