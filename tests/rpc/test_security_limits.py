"""Limits on what one client may send: bytes and tokens of a prompt, calls on one connection."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench, running_frontend


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[FrontendBench]:
    async with running_frontend(folder, tmp_path, max_prompt_bytes=20, max_prompt_tokens=15) as bench:
        yield bench


async def refusal(call: Any) -> str:
    async with asyncio.timeout(LIMIT_SECONDS):
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        return str(await call.details())


def chat(content: str, arguments: str = "") -> types_pb2.ChatInput:
    message = types_pb2.ChatMessage(role="user", content=content)
    return types_pb2.ChatInput(messages=[message], template_arguments_json=arguments)


async def test_a_long_text_is_refused_before_it_is_tokenized(bench: FrontendBench) -> None:
    told = "number of bytes in text is 21, but must be at most max_prompt_bytes, 20"
    assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(text="x" * 21))) == told
    assert await refusal(bench.stub.Generate(pb.GenerateRequest(text="x" * 21))) == told
    # Bytes, not characters; and a text may be as long as the limit.
    told = "number of bytes in text is 22, but must be at most max_prompt_bytes, 20"
    assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(text="é" * 11))) == told
    assert len((await bench.stub.Tokenize(pb.TokenizeRequest(text="é" * 10))).token_ids) == 20


async def test_all_of_a_chat_counts(bench: FrontendBench) -> None:
    told = "number of bytes in chat is 21, but must be at most max_prompt_bytes, 20"
    assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 17)))) == told
    assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 14, "{ }")))) == told
    assert (await bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 14, "{}")))).text.startswith(
        "[user]"
    )


async def test_a_prompt_of_many_tokens_is_refused(bench: FrontendBench) -> None:
    prompt = types_pb2.TokenIds(ids=[1] * 16)
    assert await refusal(bench.stub.Generate(pb.GenerateRequest(token_ids=prompt))) == (
        "number of tokens in token_ids is 16, but must be at most max_prompt_tokens, 15"
    )
    assert await refusal(bench.stub.Generate(pb.GenerateRequest(text="x" * 16))) == (
        "number of tokens in text is 16, but must be at most max_prompt_tokens, 15"
    )
    call = bench.stub.Generate(pb.GenerateRequest(text="x" * 15))
    assert len((await bench.engine.next_request()).prompt_token_ids) == 4 * 15
    call.cancel()


async def test_calls_above_a_connection_s_limit_wait_for_their_turn(folder: Path, tmp_path: Path) -> None:
    async with running_frontend(folder, tmp_path, max_streams_per_connection=1) as bench:
        first = bench.stub.Generate(pb.GenerateRequest(text="1", request_id="first"))
        assert (await bench.engine.next_request()).request_id == "first"
        second = bench.stub.Generate(pb.GenerateRequest(text="2", request_id="second"))
        # Another connection has a limit of its own.
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(bench.address, options=options) as channel:
            stub: Any = GenerationServiceStub(channel)
            third = stub.Generate(pb.GenerateRequest(text="3", request_id="third"))
            assert (await bench.engine.next_request()).request_id == "third"
            third.cancel()
        first.cancel()
        assert (await bench.engine.next_request()).request_id == "second"
        second.cancel()
