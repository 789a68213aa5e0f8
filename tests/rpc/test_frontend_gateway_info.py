"""What VllmEngine on a front end tells a gateway of the model, the server and the tokenizer."""

import asyncio
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1.generation_service_pb2 import GetServerStateResponse, WorkerState

from tests.rpc.frontend_bench import (
    EOS_TOKEN_ID,
    LIMIT_SECONDS,
    VOCAB_SIZE,
    FrontendBench,
    running_frontend,
    write_model_folder,
)
from tests.rpc.gateway_bench import gateway_stub, raw_call, read_all, status_of

SAMPLING_DEFAULTS = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model_folder(tmp_path_factory.mktemp("model"))
    generation = {**SAMPLING_DEFAULTS, "do_sample": True, "min_p": None}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.fixture
def stub(bench: FrontendBench) -> Any:
    return gateway_stub(bench.channel)


async def wait_for_health(stub: Any, expected: pb.HealthCheckResponse) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while await stub.HealthCheck(pb.HealthCheckRequest()) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_model_info(stub: Any) -> None:
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert json.loads(info.default_sampling_params_json) == SAMPLING_DEFAULTS
    info.default_sampling_params_json = ""
    assert info == pb.GetModelInfoResponse(
        model_path="tiny",
        served_model_name="tiny",
        is_generation=True,
        max_context_length=128,
        max_req_input_len=127,
        vocab_size=VOCAB_SIZE,
        model_type="qwen3",
        architectures=["Qwen3ForCausalLM"],
        eos_token_ids=[EOS_TOKEN_ID],
    )


async def test_a_limit_on_prompts_is_told(folder: Path, tmp_path: Path) -> None:
    async with running_frontend(folder, tmp_path, max_prompt_tokens=50) as bench:
        info = await gateway_stub(bench.channel).GetModelInfo(pb.GetModelInfoRequest())
    assert (info.max_context_length, info.max_req_input_len) == (128, 50)


async def test_server_info_and_loads_are_the_engine_s(bench: FrontendBench, stub: Any) -> None:
    counts = {"num_blocks": 10, "num_free_blocks": 5, "num_cached_blocks": 3, "block_size": 16}
    worker = WorkerState(**counts, max_num_seqs=8, dtype="bfloat16", attention_backend="triton")  # type: ignore[arg-type]
    bench.engine.state = GetServerStateResponse(
        num_running=2,
        num_waiting=3,
        num_preempted=1,
        kv_cache_usage_ratio=0.25,
        num_prompt_tokens_total=40,
        num_cached_tokens_total=10,
        num_output_tokens_total=30,
        workers=[worker, worker],
        uptime=Duration(seconds=20),
    )
    assert await stub.GetServerInfo(pb.GetServerInfoRequest()) == pb.GetServerInfoResponse(
        active_requests=6,
        uptime_seconds=20,
        server_type="stepwire",
        data_parallel_size=1,
        kv_cache_dtype="bfloat16",
        block_size=16,
        attention_backend="triton",
        model_dtype="bfloat16",
        max_num_seqs=16,
    )
    loads = await stub.GetLoads(pb.GetLoadsRequest(include=["core"]))
    assert (loads.dp_rank_count, bool(loads.timestamp), bool(loads.version)) == (1, True, True)
    assert list(loads.loads) == [
        pb.SchedulerLoad(
            num_running_reqs=2,
            num_waiting_reqs=4,
            num_total_reqs=6,
            num_used_tokens=2 * 2 * 16,
            max_total_num_tokens=2 * 10 * 16,
            token_usage=0.25,
            gen_throughput=1.5,
            cache_hit_rate=0.25,
            utilization=0.125,
            max_running_requests=16,
        )
    ]


async def test_health_follows_the_workers(bench: FrontendBench, stub: Any) -> None:
    assert await stub.HealthCheck(pb.HealthCheckRequest()) == pb.HealthCheckResponse(healthy=True)
    bench.engine.tell_info(engine_pb.EngineInfo(protocol_version=1, is_ready=False, reason="no worker"))
    await wait_for_health(stub, pb.HealthCheckResponse(healthy=False, message="no worker"))
    assert (await stub.GetServerInfo(pb.GetServerInfoRequest())).is_paused
    await bench.engine.stop()
    await wait_for_health(stub, pb.HealthCheckResponse(healthy=False, message="the engine is gone"))
    assert (await status_of(stub.GetLoads(pb.GetLoadsRequest())))[0] == grpc.StatusCode.UNAVAILABLE


async def test_the_tokenizer_comes_in_chunks(stub: Any, folder: Path) -> None:
    # Of random letters, so that they take about as much room when they are zipped.
    noise = np.random.default_rng(1).integers(33, 127, 100_000, np.uint8).tobytes()
    (folder / "noise.jinja").write_bytes(noise)
    chunks = await read_all(stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(chunk.data for chunk in chunks)
    assert [len(chunk.data) for chunk in chunks[:-1]] == [65536] * (len(data) // 65536)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("tokenizer.json") == (folder / "tokenizer.json").read_bytes()
        assert archive.read("noise.jinja") == noise


async def test_what_is_not_offered_says_so(bench: FrontendBench) -> None:
    methods = pb.DESCRIPTOR.services_by_name["VllmEngine"].methods
    offered = {
        "Generate",
        "Abort",
        "HealthCheck",
        "GetModelInfo",
        "GetServerInfo",
        "GetLoads",
        "GetTokenizer",
    }
    offered |= {"SubscribeKvEvents", "FlushCache"}
    refused = [method for method in methods if method.name not in offered]
    assert {"Embed", "StartProfile", "StopProfile"} <= {method.name for method in refused}
    for method in refused:
        call = raw_call(bench.channel, method.name, b"", is_stream=method.server_streaming)
        code, message = await status_of(call)
        assert code == grpc.StatusCode.UNIMPLEMENTED
        assert message.startswith(f"vllm.grpc.engine.VllmEngine/{method.name} is not supported: ")
