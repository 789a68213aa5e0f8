"""Limits on what one client may send: bytes and tokens of a prompt, calls on one connection."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from scheduler_svc.frontend import convert, vllm_convert
from scheduler_svc.frontend.chat_template import ChatTemplate
from scheduler_svc.frontend.values import ChatInput
from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench, running_frontend, write_model_folder
from tests.rpc.gateway_bench import gateway_stub


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


async def test_all_of_a_chat_counts(folder: Path, tmp_path: Path) -> None:
    # A message counts 64 bytes more than its role and content have, and so does a brace of the arguments.
    async with running_frontend(folder, tmp_path, max_prompt_bytes=148) as bench:
        told = "number of bytes in chat is 149, but must be at most max_prompt_bytes, 148"
        assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 81)))) == told
        assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 14, "{ }")))) == told
        assert (await bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 14, "{}")))).text.startswith(
            "[user]"
        )


async def test_a_chat_that_is_long_once_rendered_is_refused_before_it_is_tokenized(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    settings = {"chat_template": "{{ messages[0].content * 8 }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    async with running_frontend(tmp_path, tmp_path, max_prompt_bytes=800) as bench:
        told = "number of bytes in chat as rendered is 808, but must be at most max_prompt_bytes, 800"
        assert await refusal(bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 101)))) == told
        assert await refusal(bench.stub.Generate(pb.GenerateRequest(chat=chat("x" * 101)))) == told
        assert (await bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x" * 100)))).text == "x" * 800


async def test_a_long_chat_is_rendered_in_another_thread(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    render = ChatTemplate.render

    def spy(template: ChatTemplate, asked: ChatInput) -> str:
        threads.append(threading.current_thread())
        return render(template, asked)

    monkeypatch.setattr(ChatTemplate, "render", spy)
    async with running_frontend(folder, tmp_path) as bench:
        for num_messages in (1, 100):
            message = types_pb2.ChatMessage(role="user")
            asked = types_pb2.ChatInput(messages=[message] * num_messages)
            text = (await bench.stub.Tokenize(pb.TokenizeRequest(chat=asked))).text
            assert text == "[user]<|im_end|>" * num_messages + "[assistant]"
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_too_many_entries_are_refused_before_any_is_read(
    bench: FrontendBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (convert, "read_request"),
        (convert, "read_tokenize_prompt"),
        (vllm_convert, "read_request"),
    ):
        monkeypatch.setattr(module, name, None)
    biases = {token_id: 1.0 for token_id in range(1025)}
    told = "number of entries in sampling.logit_bias is 1025, but must be at most 1024"
    request = pb.GenerateRequest(request_id="r", sampling=types_pb2.SamplingParams(logit_bias=biases))
    assert await refusal(bench.stub.Generate(request)) == told

    many = bench.stub.GenerateMany(iter([pb.GenerateManyRequest(generate=request)]))
    assert (await asyncio.wait_for(many.read(), LIMIT_SECONDS)).error.message == told

    told = "number of entries in chat.messages is 1, but must be at most 0: each counts as 64 bytes"
    assert (await refusal(bench.stub.Tokenize(pb.TokenizeRequest(chat=chat("x"))))).startswith(told)

    theirs = vllm_pb2.GenerateRequest(tokenized={"input_ids": [1] * 16})
    assert await refusal(gateway_stub(bench.channel).Generate(theirs)) == (
        "number of tokens in tokenized.input_ids is 16, but must be at most max_prompt_tokens, 15"
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
