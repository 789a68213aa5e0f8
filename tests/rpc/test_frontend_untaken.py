"""Calls that wait for a front end which does nothing for a while: gRPC would cancel them.

On a loop and thread of their own, as the front end's stands still.
"""

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from scheduler_svc.frontend import server
from tests.rpc.frontend_bench import running_frontend, write_model_folder

NUM_CALLS = 20
BUSY_SECONDS = 2.0


def call_meanwhile(address: str) -> list[grpc.StatusCode]:
    """Open calls, and return how those ended that did, by something else than this client's end."""
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        stub = GenerationServiceStub(channel)
        request = pb.GenerateRequest(token_ids=types_pb2.TokenIds(ids=[1, 2, 3]))
        calls = [stub.Generate(request) for _ in range(NUM_CALLS)]
        time.sleep(2 * BUSY_SECONDS)
        return [call.code() for call in calls if not call.is_active()]


@pytest.mark.parametrize(("limit_seconds", "are_lost"), [(1, True), (server._UNTAKEN_LIMIT_SECONDS, False)])
async def test_calls_wait_until_a_busy_front_end_takes_them_in(
    limit_seconds: int, are_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that they pass, which shows that gRPC knows it by its name, and with ours."""
    monkeypatch.setattr(server, "_UNTAKEN_LIMIT_SECONDS", limit_seconds)
    async with running_frontend(write_model_folder(tmp_path), tmp_path) as bench:
        client = asyncio.create_task(asyncio.to_thread(call_meanwhile, bench.address))
        await asyncio.wait_for(bench.engine.next_request(), 10)
        time.sleep(BUSY_SECONDS)  # noqa: ASYNC251  # as a process that is stopped, or has too much to do
        lost = await client
    assert set(lost) == ({grpc.StatusCode.CANCELLED} if are_lost else set())
