"""A stop while no worker serves: there is nothing to wait for but a worker that comes back."""

import asyncio
from pathlib import Path

import grpc
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.v1 import generation_service_pb2

from tests.rpc.frontend_bench import LIMIT_SECONDS, running_frontend, write_model_folder

_WITHOUT_WORKER = "scheduler_svc.frontend.server._WITHOUT_WORKER_SECONDS"
_LOST = pb.EngineInfo(
    protocol_version=1, is_ready=False, reason="lost", max_model_len=128, max_pool_tokens=96
)


async def test_requests_are_interrupted_when_no_worker_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_WITHOUT_WORKER, 0.05)
    async with running_frontend(write_model_folder(tmp_path), tmp_path, drain_seconds=3600.0) as bench:
        call = bench.stub.Generate(generation_service_pb2.GenerateRequest(text="ab"))
        await bench.engine.next_request()
        bench.engine.tell_info(_LOST)
        bench.stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), LIMIT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the server stopped before the request ended"
        await asyncio.wait_for(bench.serving, LIMIT_SECONDS)


async def test_without_requests_a_stop_waits_for_nothing(tmp_path: Path) -> None:
    async with running_frontend(write_model_folder(tmp_path), tmp_path, drain_seconds=3600.0) as bench:
        bench.engine.tell_info(_LOST)
        bench.stop.set()
        await asyncio.wait_for(bench.serving, LIMIT_SECONDS)
