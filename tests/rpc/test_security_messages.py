"""What fuzzing found of messages that cannot be read or used, each by itself; tests/fuzz has the rest."""

from typing import Any

import grpc
import pytest

from tests.rpc import worker_harness
from tests.rpc.engine_bench import running_engine
from tests.stand_in_worker import StandInWorker


async def expect_refused(channel: grpc.aio.Channel, method: str) -> None:
    """Send bytes that are no message, which gRPC alone would answer with UNKNOWN and a traceback."""
    ask: Any = channel.unary_unary(method)
    call = ask(b"\xff")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await call.details()).startswith("the message cannot be read: ")


@pytest.mark.parametrize("method", ["Attach", "GetEngineState"])
async def test_the_engine_refuses_bytes_that_are_no_message(method: str) -> None:
    worker = StandInWorker()
    await worker.start()
    async with (
        running_engine(worker.address) as engine,
        grpc.aio.insecure_channel(f"unix:{engine.socket_path}") as channel,
    ):
        await expect_refused(channel, f"/stepwire.engine.v1.EngineService/{method}")
    await worker.stop()


@pytest.mark.parametrize("method", ["RunSteps", "GetWorkerInfo"])
async def test_the_worker_refuses_bytes_that_are_no_message(method: str) -> None:
    async with worker_harness.serving() as worker:
        await expect_refused(worker.channel, f"/stepwire.worker.v1.WorkerService/{method}")
