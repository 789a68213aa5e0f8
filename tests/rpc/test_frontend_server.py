"""A front end as a server: health, reflection, limits, a lost engine, a graceful stop."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.errors import ModelFolderError
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.server import Frontend
from tests.rpc.frontend_bench import (
    LIMIT_SECONDS,
    FakeEngine,
    FrontendBench,
    running_frontend,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
GENERATION = "stepwire.v1.GenerationService"


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[FrontendBench]:
    async with running_frontend(folder, tmp_path, max_message_mib=1, drain_seconds=0.2) as bench:
        yield bench


def make_frontend(config: SchedulerConfig, socket_path: str) -> Frontend:
    return Frontend(config, ServedModel.load(config), frontend_index=0, socket_path=socket_path)


async def health_of(bench: FrontendBench, name: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(bench.channel)
    status: int = (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
    return status


async def wait_health(bench: FrontendBench, name: str, status: int) -> None:
    stub: Any = health_pb2_grpc.HealthStub(bench.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=name))
    async with asyncio.timeout(LIMIT_SECONDS):
        async for response in watch:
            if response.status == status:
                break
    watch.cancel()


async def read_all(call: Any) -> list[Any]:
    async with asyncio.timeout(LIMIT_SECONDS):
        return [response async for response in call]


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    return caught.value.code(), caught.value.details() or ""


async def test_health_tells_liveness_and_readiness(bench: FrontendBench) -> None:
    assert [await health_of(bench, name) for name in ("", GENERATION, "ready")] == [SERVING] * 3
    bench.engine.tell_info(engine_pb.EngineInfo(protocol_version=1, is_ready=False, reason="no worker"))
    await wait_health(bench, "ready", NOT_SERVING)
    assert [await health_of(bench, name) for name in ("", GENERATION)] == [SERVING] * 2
    bench.engine.tell_info(engine_pb.EngineInfo(protocol_version=1, is_ready=True))
    await wait_health(bench, "ready", SERVING)


async def test_each_worker_group_has_a_health_name(bench: FrontendBench) -> None:
    # The address that the config names; one that it does not name has no health name.
    groups = [
        engine_pb.WorkerGroupInfo(address="127.0.0.1:50061", is_serving=True),
        engine_pb.WorkerGroupInfo(address="127.0.0.1:9", is_serving=True),
    ]
    assert await health_of(bench, "worker/127.0.0.1:50061") == NOT_SERVING
    bench.engine.tell_info(engine_pb.EngineInfo(protocol_version=1, is_ready=True, groups=groups))
    await wait_health(bench, "worker/127.0.0.1:50061", SERVING)
    groups[0].is_serving = False
    bench.engine.tell_info(engine_pb.EngineInfo(protocol_version=1, is_ready=True, groups=groups))
    await wait_health(bench, "worker/127.0.0.1:50061", NOT_SERVING)
    assert await health_of(bench, "ready") == SERVING


async def test_limits_follow_the_engine(bench: FrontendBench) -> None:
    assert (await bench.stub.GetModelInfo(pb.GetModelInfoRequest())).max_model_len == 128
    info = engine_pb.EngineInfo(protocol_version=1, is_ready=False, max_model_len=20, max_pool_tokens=16)
    bench.engine.tell_info(info)
    await wait_health(bench, "ready", NOT_SERVING)
    assert (await bench.stub.GetModelInfo(pb.GetModelInfoRequest())).max_model_len == 20
    assert await code_of(bench.stub.Generate(pb.GenerateRequest(text="x" * 16))) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "number of tokens in text is 16, but must be at most 15: "
        "prompt and output share the KV cache, 16 tokens",
    )


async def test_reflection_lists_the_services(bench: FrontendBench) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(bench.channel)  # type: ignore[arg-type]
    requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
    async for response in stub.ServerReflectionInfo(requests):
        names = {service.name for service in response.list_services_response.service}
    others = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert names == {GENERATION, "vllm.grpc.engine.VllmEngine", *others}


async def test_a_message_over_the_limit_is_refused_by_grpc(bench: FrontendBench) -> None:
    code, message = await code_of(bench.stub.Generate(pb.GenerateRequest(text="x" * 2**20)))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in message
    under = await code_of(bench.stub.Generate(pb.GenerateRequest(text="x " * 2**18)))
    assert under[0] == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_burst_of_calls_is_answered_whatever_its_size(bench: FrontendBench) -> None:
    # gRPC's own bound on calls that wait to be taken in would cancel some of these without a word.
    calls = [bench.stub.Generate(pb.GenerateRequest(text="")) for _ in range(1500)]
    codes = await asyncio.gather(*(call.code() for call in calls))
    assert set(codes) == {grpc.StatusCode.INVALID_ARGUMENT}


async def test_the_engine_is_told_the_front_end_s_number(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    await bench.engine.next_request()
    call.cancel()
    assert bench.engine.hellos == [engine_pb.FrontendHello(protocol_version=1, frontend_index=4)]


async def test_a_lost_engine_ends_streams_and_is_attached_again(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "ab")
    bench.engine.break_stream()
    text = ""
    while len(text) < 2:
        text += (await asyncio.wait_for(call.read(), LIMIT_SECONDS)).delta.text
    assert text == "ab"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), LIMIT_SECONDS)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "the engine is gone (ABORTED: the test broke the stream): go on from the tokens told so far",
    )
    await wait_health(bench, "ready", SERVING)
    again = bench.stub.Generate(pb.GenerateRequest(text="x"))
    assert (await bench.engine.next_request()).handle > new.handle
    again.cancel()
    assert (await bench.engine.next_end()).reason == engine_pb.END_REASON_DISCONNECT


async def test_without_an_engine_requests_are_unavailable(bench: FrontendBench) -> None:
    await bench.engine.stop()
    await wait_health(bench, "ready", NOT_SERVING)
    assert await code_of(bench.stub.Generate(pb.GenerateRequest(text="x"))) == (
        grpc.StatusCode.UNAVAILABLE,
        "the engine is not there: try again later",
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.stub.GetServerState(pb.GetServerStateRequest())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert await bench.stub.Abort(pb.AbortRequest(request_id="x")) == pb.AbortResponse()
    assert await health_of(bench, "") == SERVING


async def test_a_stop_refuses_new_requests_and_lets_running_ones_end(folder: Path, tmp_path: Path) -> None:
    async with running_frontend(folder, tmp_path, drain_seconds=LIMIT_SECONDS) as bench:
        call = bench.stub.Generate(pb.GenerateRequest(text="x"))
        new = await bench.engine.next_request()
        bench.stop.set()
        for name in ("", GENERATION, "ready"):
            await wait_health(bench, name, NOT_SERVING)
        assert await code_of(bench.stub.Generate(pb.GenerateRequest(text="x"))) == (
            grpc.StatusCode.UNAVAILABLE,
            "the server is stopping and takes no new requests",
        )
        bench.engine.send_text(new.handle, "end")
        bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
        responses = await read_all(call)
        assert responses[-1].final.usage.num_output_tokens == 3
        await asyncio.wait_for(bench.serving, LIMIT_SECONDS)


async def test_a_stop_ends_what_runs_past_the_drain_time(folder: Path, tmp_path: Path) -> None:
    async with running_frontend(folder, tmp_path, drain_seconds=0.05) as bench:
        call = bench.stub.Generate(pb.GenerateRequest(text="x"))
        await bench.engine.next_request()
        bench.stop.set()
        assert await code_of(call) == (
            grpc.StatusCode.UNAVAILABLE,
            "the server stopped before the request ended",
        )
        await asyncio.wait_for(bench.serving, LIMIT_SECONDS)


async def test_a_stop_before_the_engine_came(folder: Path, tmp_path: Path) -> None:
    config = SchedulerConfig(model=str(folder), port=0)
    frontend = make_frontend(config, str(tmp_path / "nobody.sock"))
    stop = asyncio.Event()
    serving = asyncio.create_task(frontend.serve(stop, lambda port: pytest.fail(f"listens on {port}")))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(serving, LIMIT_SECONDS)


async def test_an_unexpected_error_is_internal_and_logged(
    bench: FrontendBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr(ServedModel, "read_prompt", fail)
    assert await code_of(bench.stub.Generate(pb.GenerateRequest(text="x"))) == (
        grpc.StatusCode.INTERNAL,
        "internal error: the server's log has the details",
    )
    assert "KeyError: 'secret'" in caplog.text


async def test_calls_carry_an_id_and_are_logged(
    bench: FrontendBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stepwire.access")
    call = bench.stub.Tokenize(pb.TokenizeRequest(text="x"), metadata=(("x-request-id", "call-7"),))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "call-7"
    drawn = bench.stub.Tokenize(pb.TokenizeRequest())
    with pytest.raises(grpc.aio.AioRpcError):
        await drawn
    assert len(dict(await drawn.trailing_metadata())["x-request-id"]) == 32
    lines = [record.getMessage() for record in caplog.records if record.name == "stepwire.access"]
    assert lines[0].startswith("/stepwire.v1.GenerationService/Tokenize OK call-7 ")
    assert lines[1].startswith("/stepwire.v1.GenerationService/Tokenize INVALID_ARGUMENT ")


async def test_an_address_that_cannot_be_had_is_a_start_up_error(folder: Path, tmp_path: Path) -> None:
    engine = FakeEngine()
    await engine.start(str(tmp_path / "engine.sock"))
    config = SchedulerConfig(model=str(folder), host="192.0.2.1", port=0)
    frontend = make_frontend(config, str(tmp_path / "engine.sock"))
    with pytest.raises(ConfigError, match=r"--port is '192\.0\.2\.1:0', but must be an address"):
        await asyncio.wait_for(frontend.serve(asyncio.Event(), lambda _port: None), LIMIT_SECONDS)
    await engine.stop()


def test_a_folder_without_config_is_a_start_up_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        ServedModel.load(SchedulerConfig(model=str(tmp_path)))


async def test_concurrent_requests_do_not_mix(bench: FrontendBench) -> None:
    calls = [bench.stub.Generate(pb.GenerateRequest(request_id=str(i), text="x")) for i in range(40)]
    handles: dict[str, int] = {}
    for _ in calls:
        new = await bench.engine.next_request()
        handles[new.request_id] = new.handle
    for byte in b"abcdefgh":
        bench.engine.send_tokens([(handles[str(i)], byte + i) for i in range(40)])
    for handle in handles.values():
        bench.engine.end(handle, engine_pb.REQUEST_END_LENGTH)
    for index, call in enumerate(calls):
        responses = await read_all(call)
        ids = [token_id for response in responses for token_id in response.delta.token_ids]
        assert ids == [byte + index for byte in b"abcdefgh"]
        assert responses[-1].final.finish_reason == types_pb2.FINISH_REASON_LENGTH
