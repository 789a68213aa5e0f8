"""Resume as clients see it: the seed that is told, what reaches the engine, what is told again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2

from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench, running_frontend


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[FrontendBench]:
    async with running_frontend(folder, tmp_path, drain_seconds=0.2) as bench:
        yield bench


async def read_all(call: Any, messages: list[Any] | None = None) -> list[Any]:
    """Read a stream to its end, into ``messages`` where it may end with an error."""
    messages = [] if messages is None else messages
    async with asyncio.timeout(LIMIT_SECONDS):
        while (message := await call.read()) is not grpc.aio.EOF:
            messages.append(message)
    return messages


async def wait_max_model_len(bench: FrontendBench, max_model_len: int) -> None:
    """Wait until the front end has read that limit."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while (await bench.stub.GetModelInfo(pb.GetModelInfoRequest())).max_model_len != max_model_len:
            pass


def resume_request(text: str, num_text_bytes: int | None = None, **fields: Any) -> pb.GenerateRequest:
    """Build a request that goes on after ``text``, of which each byte is a token."""
    resume = pb.Resume(token_ids=text.encode(), num_text_bytes=num_text_bytes)
    return pb.GenerateRequest(**{"request_id": "r", "text": "x", "resume": resume, **fields})


async def test_the_seed_is_told_in_the_first_message_only(bench: FrontendBench) -> None:
    for given in (0, 2**64 - 1, None):
        sampling = types_pb2.SamplingParams(seed=given)
        call = bench.stub.Generate(pb.GenerateRequest(text="x", sampling=sampling))
        new = await bench.engine.next_request()
        assert new.has_seed
        assert given in (None, new.sampling.seed)
        bench.engine.send_text(new.handle, "a")
        first = await call.read()
        assert (first.HasField("seed"), first.seed) == (True, new.sampling.seed)
        bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
        assert [message.HasField("seed") for message in await read_all(call)] == [False]


async def test_many_streams_tell_each_request_s_seed(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    for request_id in ("a", "b"):
        await call.write(pb.GenerateManyRequest(generate=pb.GenerateRequest(request_id=request_id, text="x")))
        new = await bench.engine.next_request()
        bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
        response = await call.read()
        assert (response.request_id, response.seed) == (request_id, new.sampling.seed)
    await call.done_writing()
    assert await read_all(call) == []


async def test_resumed_output_goes_on_and_counts(bench: FrontendBench) -> None:
    stop = types_pb2.StopParams(stop_strings=["cd"], max_tokens=9)
    call = bench.stub.Generate(resume_request("abc", stop=stop))
    new = await bench.engine.next_request()
    assert np.frombuffer(new.output_token_ids, "<i4").tolist() == list(b"abc")
    assert (new.takes_over, new.max_tokens, new.request_id) == (True, 9, "r")
    bench.engine.send_text(new.handle, "éd")
    bench.engine.send_text(new.handle, "cd")
    responses = await read_all(call)
    assert "".join(response.delta.text for response in responses) == "céd"
    assert [token for response in responses for token in response.delta.token_ids] == list("édcd".encode())
    assert responses[-1].final.matched_stop_string == "cd"
    assert responses[-1].final.usage == types_pb2.Usage(num_prompt_tokens=1, num_output_tokens=8)
    assert (await bench.engine.next_end()).num_output_tokens == 8


async def test_a_request_that_is_none_takes_nothing_over(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    assert (new.takes_over, new.output_token_ids) == (False, b"")
    call.cancel()


async def test_what_has_ended_already_is_told_its_end_without_the_engine(bench: FrontendBench) -> None:
    stop = types_pb2.StopParams(max_tokens=4, stop_strings=["de"])
    responses = await read_all(bench.stub.Generate(resume_request("abcd", 3, stop=stop)))
    assert [response.delta.text for response in responses[:-1]] == ["d"]
    final = responses[-1].final
    assert final.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert final.usage == types_pb2.Usage(num_prompt_tokens=1, num_output_tokens=4)
    assert bench.engine.new_requests.empty()


@pytest.mark.parametrize(
    ("token_ids", "num_text_bytes", "message"),
    [
        ([97, 260], None, "resume.token_ids[1] is 260, but must be in [0, 260), the vocabulary"),
        ([97], 3, "resume.num_text_bytes is 3, but must be at most 1, the text of resume.token_ids"),
    ],
)
async def test_wrong_output_is_refused(
    bench: FrontendBench, token_ids: list[int], num_text_bytes: int | None, message: str
) -> None:
    resume = pb.Resume(token_ids=token_ids, num_text_bytes=num_text_bytes)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(bench.stub.Generate(pb.GenerateRequest(text="x", resume=resume)))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, message)


async def test_what_a_group_to_come_may_hold_is_to_be_tried_again(folder: Path, tmp_path: Path) -> None:
    async with running_frontend(folder, tmp_path) as bench:
        small = engine_pb.EngineInfo(protocol_version=1, is_ready=True, max_model_len=20, max_pool_tokens=32)
        small.num_unknown_groups = 1
        bench.engine.tell_info(small)
        await wait_max_model_len(bench, 20)
        request = resume_request("abc", stop=types_pb2.StopParams(max_tokens=60))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(bench.stub.Generate(request))
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "stop.max_tokens is 60, but must be at most 19 after a prompt of 1 tokens: "
            "prompt and output share the max_model_len, 20 tokens, "
            "so far: worker groups that may allow more have not connected yet (1)",
        )
        assert dict(caught.value.trailing_metadata())["retry-after-ms"] == "1000"
        too_long = resume_request("abc", stop=types_pb2.StopParams(max_tokens=512))
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"must be at most 511 .* max_model_len, 512"
        ) as caught:
            await read_all(bench.stub.Generate(too_long))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        bench.engine.tell_info(bench.engine.info)
        await wait_max_model_len(bench, 128)
        call = bench.stub.Generate(request)
        new = await bench.engine.next_request()
        bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
        await read_all(call)


async def test_a_lost_engine_tells_where_to_go_on(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "ab")
    bench.engine.break_stream()
    responses: list[pb.GenerateResponse] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call, responses)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert [token_id for response in responses for token_id in response.delta.token_ids] == list(b"ab")
    trailers = dict(caught.value.trailing_metadata())
    assert len(str(trailers.pop("x-request-id"))) == 32
    assert trailers == {
        "retry-after-ms": "100",
        "stepwire-resume-num-tokens": "2",
        "stepwire-resume-seed": str(new.sampling.seed),
    }


async def test_a_drain_that_is_over_tells_where_to_go_on(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "abc")
    bench.stop.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["stepwire-resume-num-tokens"] == "3"
    assert trailers["stepwire-resume-seed"] == str(new.sampling.seed)


async def test_many_streams_tell_what_can_go_on(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(pb.GenerateManyRequest(generate=pb.GenerateRequest(request_id="a", text="x")))
    await bench.engine.next_request()
    bench.engine.break_stream()
    interrupted = (await asyncio.wait_for(call.read(), LIMIT_SECONDS)).error
    assert (interrupted.code, interrupted.is_resumable, interrupted.retry_after_ms) == (14, True, 100)
    await call.write(pb.GenerateManyRequest(generate=pb.GenerateRequest(request_id="b", text="")))
    refused = (await asyncio.wait_for(call.read(), LIMIT_SECONDS)).error
    assert (refused.code, refused.is_resumable, refused.retry_after_ms) == (3, False, 0)
    call.cancel()


async def test_a_full_queue_says_when_to_try_again(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    bench.engine.end((await bench.engine.next_request()).handle, engine_pb.REQUEST_END_QUEUE_FULL)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(caught.value.trailing_metadata())["retry-after-ms"] == "1000"


async def test_an_id_in_use_is_waited_for_and_then_refused(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r", text="x"))
    first = await bench.engine.next_request()
    bench.engine.end(first.handle, engine_pb.REQUEST_END_DUPLICATE_ID)
    second = await bench.engine.next_request()
    assert (second.request_id, second.handle > first.handle) == ("r", True)
    assert second.sampling.seed == first.sampling.seed
    bench.engine.send_text(second.handle, "ok")
    bench.engine.end(second.handle, engine_pb.REQUEST_END_LENGTH)
    assert "".join(response.delta.text for response in await read_all(call)) == "ok"
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r", text="x"))
    for _ in range(5):
        new = await bench.engine.next_request()
        bench.engine.end(new.handle, engine_pb.REQUEST_END_DUPLICATE_ID)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert bench.engine.new_requests.empty()


async def test_an_abort_reaches_a_request_that_waits_for_its_id(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r", text="x"))
    new = await bench.engine.next_request()
    await bench.stub.Abort(pb.AbortRequest(request_id="r"))
    bench.engine.end(new.handle, engine_pb.REQUEST_END_DUPLICATE_ID)
    (response,) = await read_all(call)
    assert response.final.finish_reason == types_pb2.FINISH_REASON_ABORT


async def test_a_wait_for_a_worker_is_told(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    many = bench.stub.GenerateMany()
    await many.write(pb.GenerateManyRequest(generate=pb.GenerateRequest(request_id="m", text="x")))
    handles = {new.request_id: new.handle for new in [await bench.engine.next_request() for _ in range(2)]}
    other = handles.pop("m")
    (handle,) = handles.values()
    waiting, running = types_pb2.REQUEST_STATUS_WAITING_FOR_WORKER, types_pb2.REQUEST_STATUS_RUNNING
    bench.engine.send_text(handle, "a")
    assert (await call.read()).delta.text == "a"
    bench.engine.tell_statuses({handle: engine_pb.REQUEST_STATUS_WAITING_FOR_WORKER, 99: 1, other: 1})
    first = await call.read()
    assert (first.status.status, first.HasField("seed")) == (waiting, False)
    told = await many.read()
    assert (told.request_id, told.status.status, told.HasField("seed")) == ("m", waiting, True)
    bench.engine.tell_statuses({handle: engine_pb.REQUEST_STATUS_RUNNING, other: 77})
    assert (await call.read()).status.status == running
    bench.engine.send_text(handle, "b")
    assert (await call.read()).delta.text == "b"
    call.cancel()
    many.cancel()
