"""GenerationService of a front end, with a fake engine behind it."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from tests.rpc.frontend_bench import (
    EOS_TOKEN_ID,
    LIMIT_SECONDS,
    FrontendBench,
    running_frontend,
)


async def read_all(call: Any) -> list[Any]:
    """Read a stream to its end."""
    async with asyncio.timeout(LIMIT_SECONDS):
        return [message async for message in call]


async def read_one(call: Any) -> Any:
    return await asyncio.wait_for(call.read(), LIMIT_SECONDS)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read a stream to its error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    return caught.value.code(), caught.value.details() or ""


def int32(data: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(data, "<i4").tolist()
    return ids


def text_of(responses: list[pb.GenerateResponse]) -> str:
    return "".join(response.delta.text for response in responses)


def ids_of(responses: list[pb.GenerateResponse]) -> list[int]:
    return [token_id for response in responses for token_id in response.delta.token_ids]


# ---- Generate ----


async def test_text_in_text_out(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r1", text="Hé"))
    new = await bench.engine.next_request()
    assert (new.request_id, int32(new.prompt_token_ids)) == ("r1", list("Hé".encode()))
    assert new.handle >= 1
    bench.engine.start_request(new.handle, num_cached_tokens=2, queue_time_ns=5_000)
    bench.engine.send_text(new.handle, "ja €")
    bench.engine.send_tokens([(new.handle, EOS_TOKEN_ID)])
    bench.engine.end(
        new.handle,
        engine_pb.REQUEST_END_STOP,
        matched_stop_token_id=EOS_TOKEN_ID,
        num_cached_tokens=2,
        queue_time_ns=5_000,
    )
    responses = await read_all(call)
    assert {response.request_id for response in responses} == {"r1"}
    assert text_of(responses) == "ja €"
    assert ids_of(responses) == [*"ja €".encode(), EOS_TOKEN_ID]
    assert [response.WhichOneof("event") for response in responses].count("final") == 1
    final = responses[-1].final
    assert final.finish_reason == types_pb2.FINISH_REASON_STOP
    assert (final.WhichOneof("matched_stop"), final.matched_stop_token_id) == ("matched_stop_token_id", 256)
    assert final.usage == types_pb2.Usage(num_prompt_tokens=3, num_output_tokens=7, num_cached_tokens=2)
    assert final.timings.queue.ToNanoseconds() == 5_000
    assert 0 < final.timings.first_token.ToNanoseconds() <= final.timings.total.ToNanoseconds()


async def test_the_first_token_is_written_at_once(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "a")
    assert (await read_one(call)).delta == types_pb2.OutputDelta(text="a", token_ids=[97])


async def test_all_options_reach_the_engine(bench: FrontendBench) -> None:
    request = pb.GenerateRequest(request_id="r", cache_salt="tenant")
    request.token_ids.ids.extend([5, 259])
    sampling = types_pb2.SamplingParams(
        temperature=0, top_k=7, top_p=0.5, min_p=0.25, seed=0, presence_penalty=-1,
        frequency_penalty=1.5, repetition_penalty=1.25, logit_bias={4: -100},
    )  # fmt: skip
    request.sampling.CopyFrom(sampling)
    request.stop.CopyFrom(types_pb2.StopParams(stop_token_ids=[9], min_tokens=2, max_tokens=11))
    request.output.num_logprobs = 3
    call = bench.stub.Generate(request)
    new = await bench.engine.next_request()
    call.cancel()
    assert int32(new.prompt_token_ids) == [5, 259]
    assert (new.cache_salt, new.max_tokens, new.has_seed, new.timeout_ns) == ("tenant", 11, True, 0)
    lane = new.sampling
    assert (lane.temperature, lane.top_k, lane.top_p, lane.min_p, lane.seed) == (0, 7, 0.5, 0.25, 0)
    assert (lane.presence_penalty, lane.frequency_penalty, lane.repetition_penalty) == (-1, 1.5, 1.25)
    assert (int32(lane.bias_token_ids), np.frombuffer(lane.bias_values, "<f4").tolist()) == ([4], [-100])
    assert (int32(lane.stop_token_ids), lane.min_tokens, lane.num_logprobs_plus_one) == ([9, 256], 2, 4)


async def test_defaults_reach_the_engine(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x", stop=types_pb2.StopParams(ignore_eos=True)))
    new = await bench.engine.next_request()
    call.cancel()
    assert len(new.request_id) == 32
    assert (new.max_tokens, new.has_seed) == (0, True)
    lane = new.sampling
    assert (lane.temperature, lane.top_p, lane.repetition_penalty) == (1, 1, 1)
    assert (lane.stop_token_ids, lane.num_logprobs_plus_one) == (b"", 0)


async def test_chat_is_rendered_without_more_special_tokens(bench: FrontendBench) -> None:
    request = pb.GenerateRequest()
    request.chat.messages.add(role="user", content="Hi")
    request.chat.template_arguments_json = '{"name": "bot"}'
    call = bench.stub.Generate(request)
    new = await bench.engine.next_request()
    call.cancel()
    assert int32(new.prompt_token_ids) == [*b"[user]Hi", EOS_TOKEN_ID, *b"[bot]"]


async def test_a_stop_string_stops_the_engine_too(bench: FrontendBench) -> None:
    request = pb.GenerateRequest(text="x", stop=types_pb2.StopParams(stop_strings=["END"]))
    call = bench.stub.Generate(request)
    new = await bench.engine.next_request()
    bench.engine.start_request(new.handle, num_cached_tokens=1)
    bench.engine.send_text(new.handle, "aEN")
    bench.engine.send_text(new.handle, "Dxyz")
    assert await bench.engine.next_end() == engine_pb.EndRequest(
        handle=new.handle, reason=engine_pb.END_REASON_STOP_STRING, num_output_tokens=4
    )
    bench.engine.end(new.handle, engine_pb.REQUEST_END_STOP)  # too late to matter
    responses = await read_all(call)
    assert (text_of(responses), ids_of(responses)) == ("a", list(b"aEND"))
    final = responses[-1].final
    assert (final.finish_reason, final.matched_stop_string) == (types_pb2.FINISH_REASON_STOP, "END")
    assert final.usage == types_pb2.Usage(num_prompt_tokens=1, num_output_tokens=4, num_cached_tokens=1)


async def test_logprobs_go_to_the_tokens_that_asked(bench: FrontendBench) -> None:
    output = types_pb2.OutputParams(num_logprobs=1)
    asking = bench.stub.Generate(pb.GenerateRequest(request_id="asking", text="x", output=output))
    first = await bench.engine.next_request()
    plain = bench.stub.Generate(pb.GenerateRequest(request_id="plain", text="y"))
    second = await bench.engine.next_request()
    bench.engine.send_tokens(
        [(first.handle, 97), (second.handle, 98), (first.handle, 99)],
        logprob_counts=np.array([2, 0, 2], "<i4").tobytes(),
        logprob_token_ids=np.array([97, 5, 99, 99], "<i4").tobytes(),
        logprob_values=np.array([-1.5, -0.5, -0.25, -0.25], "<f4").tobytes(),
    )
    for new in (first, second):
        bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
    responses = await read_all(asking)
    assert text_of(responses) == "ac"
    got = [position for response in responses for position in response.delta.logprobs]
    entry, position = types_pb2.TokenLogprob, types_pb2.PositionLogprobs
    assert got == [
        position(sampled=entry(token_id=97, logprob=-1.5), top=[entry(token_id=5, logprob=-0.5)]),
        position(sampled=entry(token_id=99, logprob=-0.25), top=[entry(token_id=99, logprob=-0.25)]),
    ]
    responses = await read_all(plain)
    assert text_of(responses) == "b"
    assert not any(response.delta.logprobs for response in responses)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (engine_pb.REQUEST_END_DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (engine_pb.REQUEST_END_INVALID, grpc.StatusCode.INVALID_ARGUMENT),
        (engine_pb.REQUEST_END_QUEUE_FULL, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (engine_pb.REQUEST_END_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (engine_pb.REQUEST_END_INTERNAL, grpc.StatusCode.INTERNAL),
        (77, grpc.StatusCode.INTERNAL),
    ],
)
async def test_errors_of_the_engine_become_statuses(
    bench: FrontendBench, reason: int, code: grpc.StatusCode
) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    bench.engine.end(new.handle, reason, message="why")
    got_code, message = await status_of(call)
    assert got_code == code
    assert message == ("the engine ended the request for the unknown reason 77" if reason == 77 else "why")


async def test_a_refused_request_never_reaches_the_engine(bench: FrontendBench) -> None:
    for request, message in (
        (pb.GenerateRequest(text=""), "text is '', but must not be empty"),
        (pb.GenerateRequest(), "input is None, but must be one of text, token_ids and chat"),
        (pb.GenerateRequest(text="x" * 100), "number of tokens in text is 100, but must be at most 95: "
         "prompt and output share the KV cache, 96 tokens"),
        (pb.GenerateRequest(token_ids=types_pb2.TokenIds(ids=[260])),
         "token_ids.ids[0] is 260, but must be in [0, 260), the vocabulary"),
        (pb.GenerateRequest(text="x", priority=1),
         "priority is 1, but must be unset: priorities are not supported yet"),
    ):  # fmt: skip
        call = bench.stub.Generate(request)
        assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, message)
    assert bench.engine.new_requests.empty()


# ---- ends from the client ----


async def test_abort_ends_the_stream_with_a_final_message(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r1", text="xy"))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "a")
    for request_id in ("r1", "r1", "unknown"):
        assert await bench.stub.Abort(pb.AbortRequest(request_id=request_id)) == pb.AbortResponse()
        assert await bench.engine.next_abort() == request_id
    bench.engine.end(new.handle, engine_pb.REQUEST_END_ABORT)
    responses = await read_all(call)
    assert responses[-1].final.finish_reason == types_pb2.FINISH_REASON_ABORT
    assert responses[-1].final.usage.num_output_tokens == 1


async def test_a_cancelled_call_tells_the_engine(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "a")
    await read_one(call)
    call.cancel()
    assert await bench.engine.next_end() == engine_pb.EndRequest(
        handle=new.handle, reason=engine_pb.END_REASON_DISCONNECT
    )
    bench.engine.send_text(new.handle, "late")  # harmless
    bench.engine.end(new.handle, engine_pb.REQUEST_END_ABORT)
    await test_the_first_token_is_written_at_once(bench)


async def test_the_client_s_deadline_reaches_the_engine(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"), timeout=60)
    new = await bench.engine.next_request()
    assert 50e9 < new.timeout_ns < 61e9  # on the wire gRPC rounds it up a little
    bench.engine.end(new.handle, engine_pb.REQUEST_END_DEADLINE)
    assert await status_of(call) == (grpc.StatusCode.DEADLINE_EXCEEDED, "the client's deadline passed")


async def test_a_deadline_that_passes_tells_the_engine(bench: FrontendBench) -> None:
    call = bench.stub.Generate(pb.GenerateRequest(text="x"), timeout=0.2)
    new = await bench.engine.next_request()
    assert 0 < new.timeout_ns < 0.3e9
    assert (await status_of(call))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await bench.engine.next_end()).handle == new.handle


async def test_a_client_that_does_not_read_costs_itself_only(folder: Path, tmp_path: Path) -> None:
    # Without this the window of the client's transport grows to megabytes before anything waits.
    options = [("grpc.http2.bdp_probe", 0)]
    async with (
        running_frontend(folder, tmp_path, max_pending=1000) as bench,
        grpc.aio.insecure_channel(bench.address, options=options) as channel,
    ):
        slow_stub: Any = GenerationServiceStub(channel)
        stuck = slow_stub.Generate(pb.GenerateRequest(text="x"))
        new = await bench.engine.next_request()
        async with asyncio.timeout(2 * LIMIT_SECONDS):
            while bench.engine.ends.empty():
                bench.engine.send_text(new.handle, "abcdefghij" * 50)
                await asyncio.sleep(0.001)
        assert await bench.engine.next_end() == engine_pb.EndRequest(
            handle=new.handle, reason=engine_pb.END_REASON_SLOW_CONSUMER
        )
        await test_text_in_text_out(bench)
        code, message = await status_of(stuck)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert message.startswith("the client does not read: ")
