"""A served worker with a fake runner, and a client of its step stream.

Holds no tests: those of the servicer and of the server share it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from tests.rpc.fake_model_runner import FakeModelRunner
from worker_svc.batch.checks import TableLimits
from worker_svc.rpc.server import ServerOptions, serve
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.worker_info import LoadedWorker, WorkerInfo

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40, vocab_size=9999
)
INFO = WorkerInfo(
    config_hash="abc",
    tokenizer_hash="",
    limits=LIMITS,
    max_steps_in_flight=3,
    device="cpu",
    dtype="float32",
    attention_backend="torch",
    tp_size=1,
    versions={},
)
HELLO = pb.EngineHello(protocol_version=1, fencing_number=10, config_hash="abc", vocab_size=9999)
Stream = Any  # grpc.aio.StreamStreamCall of the two messages


def int32_bytes(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def rows(step_id: int, *lanes_and_tokens: tuple[int, int], **more: Any) -> pb.RunStepsRequest:
    """A step whose rows all sample."""
    step = pb.Step(
        step_id=step_id,
        row_lanes=int32_bytes(*(lane for lane, _ in lanes_and_tokens)),
        row_num_tokens=int32_bytes(*(num_tokens for _, num_tokens in lanes_and_tokens)),
        row_samples=b"\1" * len(lanes_and_tokens),
        **more,
    )
    return pb.RunStepsRequest(step=step)


def admission(lane: int) -> pb.Admission:
    """Three tokens in five blocks."""
    return pb.Admission(
        lane=lane,
        incarnation=1,
        token_ids=int32_bytes(1, 2, 3),
        num_prompt_tokens=3,
        block_ids=int32_bytes(*range(1 + 5 * lane, 6 + 5 * lane)),
        max_total_tokens=20,
        sampling=pb.LaneSampling(top_p=1, repetition_penalty=1),
    )


@dataclass
class Worker:
    """A served worker and a client of it."""

    runner: FakeModelRunner
    address: str
    channel: grpc.aio.Channel
    stub: Any
    stop: asyncio.Event

    async def open(self, **changes: Any) -> tuple[Stream, pb.WorkerHello]:
        """Open a stream and exchange hellos."""
        call = self.stub.RunSteps()
        hello = pb.EngineHello.FromString(HELLO.SerializeToString())
        for name, value in changes.items():
            setattr(hello, name, value)
        await call.write(pb.RunStepsRequest(hello=hello))
        answer = await call.read()
        assert answer.WhichOneof("message") == "hello"
        return call, answer.hello


@asynccontextmanager
async def serving(*, heartbeat_seconds: float = 60.0, **more: Any) -> AsyncIterator[Worker]:
    """Serve a fake runner on a free port until the block ends; ``more`` are fields of ServerOptions."""
    runner, stop = FakeModelRunner(), asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    options = ServerOptions(host="127.0.0.1", port=0, heartbeat_seconds=heartbeat_seconds, **more)
    task = asyncio.create_task(
        serve(
            options,
            lambda: LoadedWorker(info=INFO, executor=StepExecutor(LIMITS, runner)),
            announce=lambda line: address.set_result(line.removeprefix("worker listening on ")),
            stop=stop,
        )
    )
    async with grpc.aio.insecure_channel(await address) as channel:
        stub = WorkerServiceStub(channel)
        yield Worker(runner=runner, address=address.result(), channel=channel, stub=stub, stop=stop)
    runner.gate.set()
    stop.set()
    await task


async def result_of(call: Stream) -> tuple[int, list[int]]:
    answer = await asyncio.wait_for(call.read(), 5)
    assert answer is not grpc.aio.EOF, await call.details()
    assert answer.WhichOneof("message") == "result"
    assert answer.result.step_time_ns > 0
    return answer.result.step_id, np.frombuffer(answer.result.token_ids, "<i4").tolist()


async def end_of(call: Stream) -> tuple[grpc.StatusCode, str]:
    try:
        answer = await asyncio.wait_for(call.read(), 5)
        assert answer is grpc.aio.EOF, answer
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return await call.code(), await call.details()


async def until(is_true: Callable[[], Any], limit_seconds: float = 5) -> None:
    deadline = time.monotonic() + limit_seconds
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)
