"""What clients see when the worker goes, through front end and engine: a word of it, and then the rest."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2

from tests.rpc.engine_bench import LIMIT_SECONDS
from tests.rpc.stack_bench import Stack, running_stack, write_stand_in_folder
from tests.stand_in_lanes import expected_tokens

NUM_TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(folder: Path) -> AsyncIterator[Stack]:
    async with running_stack(folder, repeat_seconds=0.05) as stack:
        yield stack


async def test_a_stream_tells_that_it_waits_for_a_worker_and_goes_on(stack: Stack) -> None:
    stack.worker.step_seconds = 0.002
    request = pb.GenerateRequest(
        token_ids=types_pb2.TokenIds(ids=[1, 2, 3]),
        sampling=types_pb2.SamplingParams(seed=9),
        stop=types_pb2.StopParams(max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    call, messages = stack.stub.Generate(request), []
    messages.append(await asyncio.wait_for(call.read(), LIMIT_SECONDS))
    await stack.worker.stop()
    waits = 0
    while waits < 3:  # told again and again, so that proxies keep the stream open
        messages.append(await asyncio.wait_for(call.read(), LIMIT_SECONDS))
        waits += messages[-1].status.status == types_pb2.REQUEST_STATUS_WAITING_FOR_WORKER
    await stack.worker.start(int(stack.worker.address.rsplit(":", 1)[1]))
    while (message := await asyncio.wait_for(call.read(), LIMIT_SECONDS)) is not grpc.aio.EOF:
        messages.append(message)
    statuses = [message.status.status for message in messages if message.HasField("status")]
    assert statuses[-1] == types_pb2.REQUEST_STATUS_RUNNING
    assert set(statuses[:-1]) == {types_pb2.REQUEST_STATUS_WAITING_FOR_WORKER}
    tokens = [token_id for message in messages for token_id in message.delta.token_ids]
    assert tokens == expected_tokens(9, 3, NUM_TOKENS)
    assert messages[-1].final.usage.num_output_tokens == NUM_TOKENS
