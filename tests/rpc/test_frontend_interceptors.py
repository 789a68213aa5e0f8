"""What surrounds every call: messages that cannot be read or told, and clients that have gone."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2

from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.interceptors import CallInterceptor
from tests.rpc.frontend_bench import LIMIT_SECONDS, running_frontend, write_model_folder

METHOD = "/stepwire.v1.GenerationService/Generate"


async def test_a_message_that_cannot_be_read_is_invalid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = pb.GenerateRequest(text="xy").SerializeToString().replace(b"y", b"\xff")
    async with running_frontend(write_model_folder(tmp_path), tmp_path, drain_seconds=0.2) as bench:
        generate: Any = bench.channel.unary_stream(
            METHOD, response_deserializer=pb.GenerateResponse.FromString
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(generate(request).read(), LIMIT_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith("the message cannot be read: ")
    assert "Traceback" not in caplog.text


async def test_a_message_with_half_a_surrogate_pair_is_told(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no ' + tool) }}")
    chat = types_pb2.ChatInput(
        messages=[types_pb2.ChatMessage(role="user", content="x")],
        template_arguments_json='{"tool": "\\ud800"}',
    )
    async with running_frontend(tmp_path, tmp_path, drain_seconds=0.2) as bench:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(bench.stub.Generate(pb.GenerateRequest(chat=chat)).read(), LIMIT_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == r"chat does not fit the model's chat template: no \ud800"


async def test_a_long_message_of_wide_characters_is_told(tmp_path: Path) -> None:
    chat = types_pb2.ChatInput(
        messages=[types_pb2.ChatMessage(role="user", content="x")], template_arguments_json="😀" * 3000
    )
    async with running_frontend(write_model_folder(tmp_path), tmp_path, drain_seconds=0.2) as bench:
        # Between a soft and a hard limit gRPC draws lots.
        for _ in range(20):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(
                    bench.stub.Generate(pb.GenerateRequest(chat=chat)).read(), LIMIT_SECONDS
                )
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


class GoneContext:
    """Fails as gRPC's own does between the end of a client's stream and the cancelling of its call."""

    async def write(self, _: Any) -> None:
        raise grpc.aio.InternalError("execute_batch")

    async def abort(self, _code: grpc.StatusCode, _message: str) -> None:
        raise grpc.aio.InternalError("execute_batch")

    def set_trailing_metadata(self, _: Any) -> None:
        pass

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "a test"


async def refuse(_request: Any, _context: Any) -> None:
    raise InvalidRequestError("no")


async def answer(_request: Any, context: Any) -> None:
    with cancelled_where_client_is_gone():
        await context.write("text")


@pytest.mark.parametrize("behaviour", [refuse, answer])
async def test_a_client_that_has_gone_is_no_fault_of_ours(
    behaviour: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handler: Any = grpc.unary_stream_rpc_method_handler(behaviour, request_deserializer=bytes)

    async def find_handler(_: grpc.HandlerCallDetails) -> Any:
        return handler

    class Details(grpc.HandlerCallDetails):
        method = METHOD
        invocation_metadata = ()

    ended: list[tuple[str, str]] = []
    interceptor = CallInterceptor(lambda method, code: ended.append((method, code)))
    wrapped: Any = await interceptor.intercept_service(find_handler, Details())
    again: Any = await interceptor.intercept_service(find_handler, Details())
    assert again is wrapped
    with pytest.raises(asyncio.CancelledError):
        await wrapped.unary_stream(b"", GoneContext())
    assert [method for method, _ in ended] == [METHOD]
    assert "Traceback" not in caplog.text
