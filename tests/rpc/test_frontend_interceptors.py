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
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.watch import Watch
from scheduler_svc.metrics import frontend_metrics
from telemetry.board import Board
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

    def time_remaining(self) -> float | None:
        return None


async def refuse(_request: Any, _context: Any) -> None:
    raise InvalidRequestError("no")


async def answer(_request: Any, context: Any) -> None:
    with cancelled_where_client_is_gone():
        await context.write("text")


class Details(grpc.HandlerCallDetails):
    method = METHOD
    invocation_metadata = ()


def finding(behaviour: Any) -> Any:
    """Return what finds the one handler that there is."""
    handler: Any = grpc.unary_stream_rpc_method_handler(behaviour, request_deserializer=bytes)

    async def find_handler(_: grpc.HandlerCallDetails) -> Any:
        return handler

    return find_handler


@pytest.mark.parametrize("behaviour", [refuse, answer])
async def test_a_client_that_has_gone_is_no_fault_of_ours(
    behaviour: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[tuple[str, str]] = []
    interceptor = CallInterceptor(lambda method, code: ended.append((method, code)))
    find_handler = finding(behaviour)
    wrapped: Any = await interceptor.intercept_service(find_handler, Details())
    again: Any = await interceptor.intercept_service(find_handler, Details())
    assert again is wrapped
    with pytest.raises(asyncio.CancelledError):
        await wrapped.unary_stream(b"", GoneContext())
    assert [method for method, _ in ended] == [METHOD]
    assert "Traceback" not in caplog.text


class TimedContext(GoneContext):
    """Has these times left, from one question to the next."""

    def __init__(self, *seconds_left: float | None) -> None:
        self._seconds_left = list(seconds_left)

    def time_remaining(self) -> float | None:
        return self._seconds_left.pop(0)


@pytest.mark.parametrize(
    ("seconds_left", "code", "outcome"),
    [
        ((2.0, 0.0), "DEADLINE_EXCEEDED", "deadline"),
        ((2.0, 0.08), "DEADLINE_EXCEEDED", "deadline"),  # the client's own reset, a little before
        ((2.0, 0.1), "CANCELLED", "cancelled"),
        ((60.0, 1.2), "DEADLINE_EXCEEDED", "deadline"),
        ((None, None), "CANCELLED", "cancelled"),
    ],
)
async def test_a_call_cancelled_at_its_deadline_ends_by_that(
    seconds_left: tuple[float | None, ...], code: str, outcome: str
) -> None:
    board = Board(frontend_metrics())
    meter = FrontendMeter(board)

    async def be_cancelled(_request: Any, _context: Any) -> None:
        async def run_one() -> None:
            with Watch(meter).request("r"):
                raise asyncio.CancelledError

        await asyncio.create_task(run_one())  # as GenerateMany has them

    interceptor = CallInterceptor(meter.note_call)
    wrapped: Any = await interceptor.intercept_service(finding(be_cancelled), Details())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(wrapped.unary_stream(b"", TimedContext(*seconds_left)))
    assert board.slot("stepwire_frontend_calls_total", "Generate", code).value == 1
    assert board.slot("stepwire_frontend_requests_total", outcome).value == 1
