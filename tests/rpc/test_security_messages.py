"""What fuzzing found of messages that cannot be read or used, each by itself; tests/fuzz has the rest."""

from typing import Any

import grpc
import pytest
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.worker.v1 import worker_service_pb2 as pb

from tests.rpc import worker_harness
from tests.rpc.engine_bench import attached, new_request, running_engine
from tests.stand_in_worker import StandInWorker


async def expect_refused(channel: grpc.aio.Channel, method: str) -> None:
    """Send bytes that are no message, which gRPC alone would answer with UNKNOWN and a traceback."""
    ask: Any = channel.unary_unary(method)
    call = ask(b"\xff")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await call.details()).startswith("the message cannot be read: ")


STANDARD = (
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
ENGINE, WORKER = "/stepwire.engine.v1.EngineService", "/stepwire.worker.v1.WorkerService"


@pytest.mark.parametrize("method", [f"{ENGINE}/Attach", f"{ENGINE}/GetEngineState", *STANDARD])
async def test_the_engine_refuses_bytes_that_are_no_message(method: str) -> None:
    worker = StandInWorker()
    await worker.start()
    async with (
        running_engine(worker.address) as engine,
        grpc.aio.insecure_channel(f"unix:{engine.socket_path}") as channel,
    ):
        await expect_refused(channel, method)
    await worker.stop()


async def test_the_engine_keeps_from_the_worker_what_it_could_not_take() -> None:
    worker = StandInWorker()
    await worker.start()
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, [1, 1000], max_tokens=2), new_request(2, [1, 999], max_tokens=2))
        await probe.wait_ended(1, 2)
        assert (probe.ended[1].reason, probe.ended[1].message) == (
            engine_pb.REQUEST_END_INVALID,
            "prompt_token_ids hold ids outside [0, 1000), the vocabulary",
        )
        assert len(probe.tokens[2]) == 2
    await worker.stop()


@pytest.mark.parametrize("method", [f"{WORKER}/RunSteps", f"{WORKER}/GetWorkerInfo", *STANDARD])
async def test_the_worker_refuses_bytes_that_are_no_message(method: str) -> None:
    async with worker_harness.serving() as worker:
        await expect_refused(worker.channel, method)


def a_step(**sampling: Any) -> pb.RunStepsRequest:
    message = worker_harness.rows(1, (0, 3), admissions=[worker_harness.admission(0)])
    for name, value in sampling.items():
        setattr(message.step.admissions[0].sampling, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (a_step(top_k=2**31), "top_k of lane 0 is 2147483648, but must be at most 9999"),
        (worker_harness.rows(1, num_steps=0), "num_steps is 0, but must be at least 1"),
    ],
)
async def test_the_worker_refuses_steps_that_it_once_failed_at(
    message: pb.RunStepsRequest, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker_harness.serving() as worker:
        call, _ = await worker.open()
        await call.write(message)
        assert await worker_harness.end_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, told)
    assert "Traceback" not in caplog.text


async def test_a_refusal_reaches_the_engine_whatever_value_it_names() -> None:
    async with worker_harness.serving() as worker:
        call = worker.stub.RunSteps()
        await call.write(
            pb.RunStepsRequest(hello=pb.EngineHello(protocol_version=1, config_hash="x" * 20_000))
        )
        code, told = await worker_harness.end_of(call)
    assert (code, len(told)) == (grpc.StatusCode.FAILED_PRECONDITION, 505)
    assert told.startswith("config_hash: the engine expects xxx")
    assert told.endswith("the worker has abc")
