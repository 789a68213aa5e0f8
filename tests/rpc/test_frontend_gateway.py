"""VllmEngine's requests on a front end, with a fake engine behind it: how they run, and what is refused."""

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2 as engine_pb

from tests.rpc.frontend_bench import (
    EOS_TOKEN_ID,
    LIMIT_SECONDS,
    VOCAB_SIZE,
    FrontendBench,
)
from tests.rpc.gateway_bench import gateway_stub, raw_call, read_all, status_of


@pytest.fixture
def stub(bench: FrontendBench) -> Any:
    return gateway_stub(bench.channel)


def request(*, stream: bool = False, **params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="chat-1",
        tokenized=pb.TokenizedInput(original_text="never read", input_ids=b"abc"),
        sampling_params=pb.SamplingParams(**params),
        stream=stream,
    )


async def test_a_stream_tells_chunks_and_then_the_end(bench: FrontendBench, stub: Any) -> None:
    call = stub.Generate(request(stream=True, temperature=0, max_tokens=9))
    new = await bench.engine.next_request()
    assert (new.request_id, np.frombuffer(new.prompt_token_ids, "<i4").tolist()) == ("chat-1", [97, 98, 99])
    assert (new.sampling.temperature, new.max_tokens) == (0, 9)
    bench.engine.start_request(new.handle, num_cached_tokens=2)
    bench.engine.send_text(new.handle, "x")
    messages = aiter(call)
    assert (await asyncio.wait_for(anext(messages), LIMIT_SECONDS)).chunk == pb.GenerateStreamChunk(
        token_ids=b"x", prompt_tokens=3, completion_tokens=1, cached_tokens=2
    )
    bench.engine.send_tokens([(new.handle, EOS_TOKEN_ID)])
    bench.engine.end(
        new.handle,
        engine_pb.REQUEST_END_STOP,
        matched_stop_token_id=EOS_TOKEN_ID,
        num_cached_tokens=2,
    )
    *chunks, last = await read_all(messages)
    assert [token_id for one in chunks for token_id in one.chunk.token_ids] == [EOS_TOKEN_ID]
    assert last.complete == pb.GenerateComplete(
        finish_reason="stop",
        prompt_tokens=3,
        completion_tokens=2,
        cached_tokens=2,
        matched_token_id=EOS_TOKEN_ID,
    )


async def test_without_stream_one_message_tells_all(bench: FrontendBench, stub: Any) -> None:
    call = stub.Generate(request(stop=["END"], logprobs=0))
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "aE")
    bench.engine.send_text(new.handle, "NDxyz")
    # The gateway cuts the text; that the engine stops, too, is ours to see to.
    assert (await bench.engine.next_end()).reason == engine_pb.END_REASON_STOP_STRING
    (only,) = await read_all(call)
    assert bytes(only.complete.output_ids) == b"aEND"
    assert (only.complete.finish_reason, only.complete.matched_stop_str) == ("stop", "END")
    assert (only.complete.prompt_tokens, only.complete.completion_tokens) == (3, 4)


async def test_abort_ends_a_request_and_may_be_said_again(bench: FrontendBench, stub: Any) -> None:
    call = stub.Generate(request(stream=True))
    new = await bench.engine.next_request()
    for ids in (["chat-1", "other"], ["chat-1"], []):
        assert await stub.Abort(pb.AbortRequest(request_ids=ids)) == pb.AbortResponse()
    assert [await bench.engine.next_abort() for _ in range(3)] == ["chat-1", "other", "chat-1"]
    bench.engine.end(new.handle, engine_pb.REQUEST_END_ABORT)
    assert [one.complete.finish_reason for one in await read_all(call)] == ["abort"]


async def test_a_cancelled_call_tells_the_engine(bench: FrontendBench, stub: Any) -> None:
    call = stub.Generate(request())
    new = await bench.engine.next_request()
    call.cancel()
    assert (await bench.engine.next_end()).handle == new.handle


async def test_errors_of_the_engine_become_statuses(bench: FrontendBench, stub: Any) -> None:
    call = stub.Generate(request(), timeout=60)
    new = await bench.engine.next_request()
    bench.engine.end(new.handle, engine_pb.REQUEST_END_QUEUE_FULL, message="why")
    assert await status_of(call) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "why")
    assert 50e9 < new.timeout_ns < 61e9


EDGES: dict[str, dict[str, Any]] = {
    "sampling_params.temperature": {"temperature": float("nan")},
    "sampling_params.top_p": {"top_p": -0.5},
    "sampling_params.top_k": {"top_k": 2**32 - 1},
    "sampling_params.min_p": {"min_p": float("inf")},
    "sampling_params.frequency_penalty": {"frequency_penalty": 2.5},
    "sampling_params.presence_penalty": {"presence_penalty": -3},
    "sampling_params.repetition_penalty": {"repetition_penalty": -1},
    "sampling_params.max_tokens": {"max_tokens": 0},
    "sampling_params.min_tokens": {"min_tokens": 2**32 - 1},
    "sampling_params.stop[1]": {"stop": ["a", ""]},
    "number of entries in sampling_params.stop": {"stop": ["a"] * 17},
    "sampling_params.stop_token_ids[0]": {"stop_token_ids": [VOCAB_SIZE]},
    "sampling_params.logprobs": {"logprobs": -1},
    "a key of sampling_params.logit_bias": {"logit_bias": {-1: 0}},
    "sampling_params.logit_bias[5]": {"logit_bias": {5: float("nan")}},
    "sampling_params.n": {"n": 2**32 - 1},
    "sampling_params.grammar": {"grammar": ""},
}


async def test_each_sampling_field_is_refused_by_its_name(stub: Any) -> None:
    for field, params in EDGES.items():
        code, message = await status_of(stub.Generate(request(**params)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert message.startswith(f"{field} is "), message


async def test_each_field_of_a_request_is_refused_by_its_name(bench: FrontendBench, stub: Any) -> None:
    ids, long_text = pb.TokenizedInput, "x" * 129
    for message, start in (
        (pb.GenerateRequest(), "input is None, but must be one of tokenized and text"),
        (pb.GenerateRequest(text=""), "text is ''"),
        (pb.GenerateRequest(tokenized={}), "tokenized.input_ids is []"),
        (pb.GenerateRequest(tokenized=ids(input_ids=[VOCAB_SIZE])), "tokenized.input_ids[0] is 260"),
        (
            pb.GenerateRequest(tokenized=ids(input_ids=[1] * 128)),
            "number of tokens in tokenized.input_ids is 128, but must be at most 127",
        ),
        (pb.GenerateRequest(request_id=long_text, text="x"), "number of characters in request_id is 129"),
    ):
        assert (await status_of(stub.Generate(message)))[1].startswith(start)
    refusals = (
        (stub.Abort(pb.AbortRequest(request_ids=["a", ""])), "request_ids[1] is ''"),
        (stub.Abort(pb.AbortRequest(request_ids=["a"] * 1025)), "number of entries in request_ids is 1025"),
        (
            stub.Abort(pb.AbortRequest(request_ids=["a", long_text])),
            "number of characters in request_ids[1] is 129",
        ),
        (stub.GetLoads(pb.GetLoadsRequest(dp_rank=-1)), "dp_rank is -1"),
    )
    for call, start in refusals:
        code, text = await status_of(call)
        assert (code, text.startswith(start)) == (grpc.StatusCode.INVALID_ARGUMENT, True), text
    assert bench.engine.new_requests.empty()
    assert bench.engine.aborted_ids.empty()


async def test_bytes_that_are_no_message_are_refused(bench: FrontendBench) -> None:
    code, message = await status_of(raw_call(bench.channel, "Generate", b"\xff\xff", is_stream=True))
    assert (code, message.startswith("the message cannot be read")) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        True,
    )
