"""The unary methods of GenerationService on a front end."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from tokenizers import Tokenizer

from scheduler_svc.frontend.served_model import ServedModel
from tests.rpc.engine_bench import wait_until
from tests.rpc.frontend_bench import (
    EOS_TOKEN_ID,
    LIMIT_SECONDS,
    VOCAB_SIZE,
    FrontendBench,
    running_frontend,
    write_model_folder,
)


async def unary_status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, LIMIT_SECONDS)
    return caught.value.code(), caught.value.details() or ""


async def test_model_info(bench: FrontendBench) -> None:
    info = await bench.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.server_version
    info.server_version = ""
    assert info == pb.GetModelInfoResponse(
        model_name="tiny",
        architecture="Qwen3ForCausalLM",
        vocab_size=VOCAB_SIZE,
        max_model_len=128,
        eos_token_ids=[EOS_TOKEN_ID],
        has_chat_template=True,
    )


async def test_server_state_is_the_engine_s(bench: FrontendBench) -> None:
    state = await bench.stub.GetServerState(pb.GetServerStateRequest())
    assert state == pb.GetServerStateResponse(num_running=3)


async def test_a_token_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_tokens([f"<|extra{index}|>" for index in range(257, VOCAB_SIZE + 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    within, beyond = f"<|extra{VOCAB_SIZE - 1}|>", f"<|extra{VOCAB_SIZE}|>"
    chat = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="u", content=beyond)])
    async with running_frontend(tmp_path, tmp_path, drain_seconds=0.2) as bench:
        answer = await bench.stub.Tokenize(pb.TokenizeRequest(text=within))
        assert list(answer.token_ids) == [VOCAB_SIZE - 1]
        for request, field in (
            (pb.GenerateRequest(text=f"x{beyond}"), "text as tokens[1]"),
            (pb.GenerateRequest(chat=chat), "chat as tokens[3]"),
        ):
            code, message = await unary_status_of(bench.stub.Generate(request).read())
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert message == f"{field} is 260, but must be in [0, 260), the vocabulary"


async def test_tokenize_and_detokenize_round_trip(bench: FrontendBench) -> None:
    text = "Grüße 👩<|im_end|>"
    tokens = await bench.stub.Tokenize(pb.TokenizeRequest(text=text))
    assert list(tokens.token_ids) == [*"Grüße 👩".encode(), EOS_TOKEN_ID]
    assert tokens.text == text
    request = pb.DetokenizeRequest(token_ids=tokens.token_ids)
    assert (await bench.stub.Detokenize(request)).text == text
    request.skip_special_tokens = True
    assert (await bench.stub.Detokenize(request)).text == "Grüße 👩"


async def test_tokenize_chat_tells_the_rendered_prompt(bench: FrontendBench) -> None:
    request = pb.TokenizeRequest()
    request.chat.messages.add(role="user", content="Hi")
    tokens = await bench.stub.Tokenize(request)
    assert tokens.text == "[user]Hi<|im_end|>[assistant]"
    assert list(tokens.token_ids) == [*b"[user]Hi", EOS_TOKEN_ID, *b"[assistant]"]


async def test_bad_tokenize_and_detokenize_are_refused(bench: FrontendBench) -> None:
    assert await unary_status_of(bench.stub.Tokenize(pb.TokenizeRequest())) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "input is None, but must be one of text, token_ids and chat",
    )
    assert await unary_status_of(bench.stub.Detokenize(pb.DetokenizeRequest(token_ids=[1, 260]))) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "token_ids[1] is 260, but must be in [0, 260), the vocabulary",
    )


async def test_abort_needs_an_id(bench: FrontendBench) -> None:
    assert await unary_status_of(bench.stub.Abort(pb.AbortRequest())) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "request_id is '', but must not be empty",
    )


async def test_abort_refuses_an_id_that_no_request_can_have(bench: FrontendBench) -> None:
    assert await unary_status_of(bench.stub.Abort(pb.AbortRequest(request_id="x" * 129))) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "number of characters in request_id is 129, but must be at most 128",
    )
    await bench.stub.Abort(pb.AbortRequest(request_id="x" * 128))
    assert await bench.engine.next_abort() == "x" * 128


async def test_a_refused_message_is_not_kept_as_garbage(bench: FrontendBench) -> None:
    def is_kept() -> bool:
        alive = (one for one in gc.get_objects() if type(one) is pb.AbortRequest)
        return any(one.request_id == "k" * 129 for one in alive)

    abort: Any = bench.channel.unary_unary("/stepwire.v1.GenerationService/Abort")  # of bytes: none are ours
    message = pb.AbortRequest(request_id="k" * 129).SerializeToString()
    gc.disable()
    try:
        code, _ = await unary_status_of(abort(message))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        await wait_until(lambda: not is_kept())
    finally:
        gc.enable()


async def test_an_abort_before_the_engine_knows_the_request(
    bench: FrontendBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_prompt = ServedModel.read_prompt
    is_reading, may_go_on = asyncio.Event(), asyncio.Event()

    async def read_slowly(model: ServedModel, prompt: Any) -> Any:
        is_reading.set()
        await may_go_on.wait()
        return await read_prompt(model, prompt)

    monkeypatch.setattr(ServedModel, "read_prompt", read_slowly)
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r", text="xyz"))
    async with asyncio.timeout(LIMIT_SECONDS):
        await is_reading.wait()
    await bench.stub.Abort(pb.AbortRequest(request_id="r"))
    may_go_on.set()
    response = await asyncio.wait_for(call.read(), LIMIT_SECONDS)
    assert response.final.finish_reason == types_pb2.FINISH_REASON_ABORT
    assert response.final.usage == types_pb2.Usage(num_prompt_tokens=3)
    assert await asyncio.wait_for(call.read(), LIMIT_SECONDS) is grpc.aio.EOF
    assert bench.engine.new_requests.empty()
