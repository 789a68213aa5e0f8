"""The worker's gRPC server: health, reflection, start and stop."""

import asyncio
import socket
import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from tests.rpc.fake_model_runner import FakeModelRunner
from tests.rpc.worker_harness import INFO, LIMITS, end_of, serving
from worker_svc.errors import ConfigError, MemoryBudgetError
from worker_svc.rpc.server import ServerOptions, serve
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.worker_info import LoadedWorker

SERVICES = ("", "stepwire.worker.v1.WorkerService")


def loaded() -> LoadedWorker:
    return LoadedWorker(info=INFO, executor=StepExecutor(LIMITS, FakeModelRunner()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def health_of(channel: grpc.aio.Channel) -> list[int]:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    requests = [health_pb2.HealthCheckRequest(service=service) for service in SERVICES]
    return [(await stub.Check(request, wait_for_ready=True)).status for request in requests]


async def test_health_and_reflection() -> None:
    async with serving() as worker:
        assert await health_of(worker.channel) == [health_pb2.HealthCheckResponse.SERVING] * 2
        channel: Any = worker.channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    names = [service.name for answer in answers for service in answer.list_services_response.service]
    assert names == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "stepwire.worker.v1.WorkerService",
    ]


async def test_no_stream_is_taken_while_the_model_loads() -> None:
    may_load, stop, port = threading.Event(), asyncio.Event(), free_port()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def load() -> LoadedWorker:
        assert may_load.wait(10)
        return loaded()

    options = ServerOptions(host="127.0.0.1", port=port)
    task = asyncio.create_task(serve(options, load, announce=lines.put_nowait, stop=stop))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await health_of(channel) == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2
        stub: Any = WorkerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        call = stub.RunSteps()
        await call.write(pb.RunStepsRequest(hello=pb.EngineHello()))
        assert await end_of(call) == (grpc.StatusCode.UNAVAILABLE, "the worker still loads the model")
        assert lines.empty()
        may_load.set()
        assert await asyncio.wait_for(lines.get(), 5) == f"worker listening on 127.0.0.1:{port}"
        assert await health_of(channel) == [health_pb2.HealthCheckResponse.SERVING] * 2
    stop.set()
    await task


async def test_a_model_that_does_not_load_ends_the_server() -> None:
    def load() -> LoadedWorker:
        raise MemoryBudgetError("too small")

    options = ServerOptions(host="127.0.0.1", port=0)
    lines: list[str] = []
    with pytest.raises(MemoryBudgetError, match="too small"):
        await serve(options, load, announce=lines.append)
    assert lines == []


async def test_a_port_in_use_is_told_by_its_flag(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ServerOptions(host="127.0.0.1", port=port)
        told = f"cannot listen on --host 127.0.0.1 --port {port}: Address already in use"
        with pytest.raises(ConfigError, match=f"^{told}$"):
            await serve(options, loaded, announce=print)
    assert capfd.readouterr().err == ""  # gRPC, too, says nothing


async def test_a_stop_ends_the_stream_without_an_error() -> None:
    async with serving() as worker:
        call, _ = await worker.open()
        worker.stop.set()
        # So the engine knows that nothing it sent is to blame.
        assert await end_of(call) == (grpc.StatusCode.OK, "")
