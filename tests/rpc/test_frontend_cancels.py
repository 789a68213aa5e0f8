"""Requests that nobody wants any more, through front end and engine to a stand-in worker that counts steps.

However a request is cancelled, its blocks are free before another step has run, and its lane with the
step that follows those in flight.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from tests.rpc.engine_bench import (
    LIMIT_SECONDS,
    RunningEngine,
    num_finished,
    num_running,
    num_waiting,
    wait_until,
)
from tests.rpc.stack_bench import Stack, running_stack, write_stand_in_folder

STEPS_IN_FLIGHT = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(folder: Path) -> AsyncIterator[Stack]:
    async with running_stack(folder, max_steps_in_flight=STEPS_IN_FLIGHT) as stack:
        yield stack


def endless(request_id: str) -> pb.GenerateRequest:
    """Build a request that runs to the end of its context."""
    stop = types_pb2.StopParams(ignore_eos=True)
    return pb.GenerateRequest(request_id=request_id, token_ids=types_pb2.TokenIds(ids=[1, 2, 3]), stop=stop)


async def cancel_call(stack: Stack) -> None:
    call = stack.stub.Generate(endless("r"))
    await until_it_runs(stack, call)
    call.cancel()


async def close_channel(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        stub: Any = GenerationServiceStub(channel)
        await until_it_runs(stack, stub.Generate(endless("r")))


async def abort(stack: Stack) -> None:
    call = stack.stub.Generate(endless("r"))
    await until_it_runs(stack, call)
    await stack.stub.Abort(pb.AbortRequest(request_id="r"))


async def pass_the_deadline(stack: Stack) -> None:
    call = stack.stub.Generate(endless("r"), timeout=0.6)
    await until_it_runs(stack, call)
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def abort_in_a_stream_of_many(stack: Stack) -> None:
    call = stack.stub.GenerateMany()
    await call.write(pb.GenerateManyRequest(generate=endless("r")))
    await until_it_runs(stack, call)
    await call.write(pb.GenerateManyRequest(abort_request_id="r"))


async def cancel_a_stream_of_many(stack: Stack) -> None:
    call = stack.stub.GenerateMany()
    await call.write(pb.GenerateManyRequest(generate=endless("r")))
    await until_it_runs(stack, call)
    call.cancel()


async def until_it_runs(stack: Stack, call: Any) -> None:
    """Wait for the first token, then hold the worker's steps."""
    assert (await asyncio.wait_for(call.read(), LIMIT_SECONDS)).delta.token_ids
    stack.worker.may_run.clear()
    await wait_until(lambda: stack.engine.engine.state().workers[0].num_steps_in_flight == STEPS_IN_FLIGHT)


def num_held_blocks(engine: RunningEngine) -> int:
    core = engine.engine.state().core
    assert core is not None
    return core.num_blocks - core.num_free_blocks - core.num_cached_blocks


@pytest.mark.parametrize(
    "cancel",
    [
        cancel_call,
        close_channel,
        abort,
        pass_the_deadline,
        abort_in_a_stream_of_many,
        cancel_a_stream_of_many,
    ],
)
async def test_a_cancelled_request_frees_all_it_held(
    stack: Stack, cancel: Callable[[Stack], Awaitable[None]]
) -> None:
    await cancel(stack)
    num_steps_before = stack.worker.num_steps
    await wait_until(lambda: num_finished(stack.engine) == 1)
    assert num_held_blocks(stack.engine) == 0
    assert stack.worker.num_steps == num_steps_before, "no step was needed"
    stack.worker.may_run.set()
    await wait_until(lambda: stack.worker.num_lanes_held == 0)
    assert stack.worker.num_steps - num_steps_before <= STEPS_IN_FLIGHT + 1


async def test_a_deadline_counts_in_the_queue(stack: Stack) -> None:
    running = stack.stub.Generate(endless("running"))
    await until_it_runs(stack, running)  # and all credits are used up
    queued = stack.stub.Generate(endless("queued"), timeout=0.6)
    await wait_until(lambda: num_waiting(stack.engine) == 1)
    assert await queued.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await wait_until(lambda: num_waiting(stack.engine) == 0)
    assert stack.worker.num_lanes_held == 1
    running.cancel()


async def test_an_id_whose_call_is_being_cancelled_is_waited_for(stack: Stack) -> None:
    stack.worker.step_seconds = 0.005
    first = stack.stub.Generate(endless("same"))
    assert (await asyncio.wait_for(first.read(), LIMIT_SECONDS)).delta.token_ids
    second = stack.stub.Generate(endless("same"))
    await stack.stub.Abort(pb.AbortRequest(request_id="other"))  # the second call was on its way before
    first.cancel()
    assert (await asyncio.wait_for(second.read(), LIMIT_SECONDS)).delta.token_ids
    second.cancel()


async def test_an_id_that_stays_in_use_is_refused(stack: Stack) -> None:
    stack.worker.may_run.clear()
    first = stack.stub.Generate(endless("same"))
    await wait_until(lambda: num_running(stack.engine) == 1)
    second = stack.stub.Generate(endless("same"))
    assert await asyncio.wait_for(second.code(), LIMIT_SECONDS) is grpc.StatusCode.INVALID_ARGUMENT
    first.cancel()
