"""Calls that end as cancelled though the client asked for no such thing: so closing servers end them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)
from stepwire_cli.main import app
from stepwire_client import AsyncStepwireClient, FinalOutput, GenerationRequest, StepwireClient, Unavailable
from typer.testing import CliRunner

DELTAS = [types_pb2.OutputDelta(text=text, token_ids=[ord(text)]) for text in "ab"]
FINAL = types_pb2.FinalOutput(finish_reason=types_pb2.FINISH_REASON_LENGTH)


@dataclass(slots=True)
class ClosingService(GenerationServiceServicer):
    """Cancels calls: the first untouched, the second after a token, the third untouched again."""

    num_calls: int = 0
    is_always: bool = False

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:  # noqa: N802
        for name, event in self._events(request, context):
            yield pb.GenerateResponse(request_id=request.request_id, seed=7, **{name: event})

    def GenerateMany(  # noqa: N802
        self, request_iterator: Iterator[pb.GenerateManyRequest], context: Any
    ) -> Iterator[pb.GenerateManyResponse]:
        request = next(request_iterator).generate
        for name, event in self._events(request, context):
            yield pb.GenerateManyResponse(request_id=request.request_id, seed=7, **{name: event})

    def _events(self, request: pb.GenerateRequest, context: Any) -> Iterator[tuple[str, Any]]:
        self.num_calls += 1
        num_told = len(request.resume.token_ids)
        if self.num_calls == 2:
            yield "delta", DELTAS[num_told]
        if self.num_calls <= 3 or self.is_always:
            context.abort(grpc.StatusCode.CANCELLED, "")
        for delta in DELTAS[num_told:]:
            yield "delta", delta
        yield "final", FINAL


@pytest.fixture
def service() -> ClosingService:
    return ClosingService()  # type: ignore[abstract]


@pytest.fixture
def address(service: ClosingService) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    add_GenerationServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


def test_a_stream_goes_on(address: str, service: ClosingService) -> None:
    with StepwireClient(address) as client:
        assert [delta.text for delta in client.generate("Hi")] == ["a", "b"]
    assert service.num_calls == 4


async def test_a_stream_goes_on_with_asyncio(address: str, service: ClosingService) -> None:
    async with AsyncStepwireClient(address) as client:
        assert [delta.text async for delta in client.generate("Hi")] == ["a", "b"]
    assert service.num_calls == 4


def test_a_bulk_goes_on(address: str, service: ClosingService) -> None:
    with StepwireClient(address) as client:
        events = [event for _, event in client.generate_many([GenerationRequest.of("Hi")])]
    assert (len(events), type(events[-1]), service.num_calls) == (3, FinalOutput, 4)


async def test_a_bulk_goes_on_with_asyncio(address: str, service: ClosingService) -> None:
    async with AsyncStepwireClient(address) as client:
        events = [event async for _, event in client.generate_many([GenerationRequest.of("Hi")])]
    assert (len(events), type(events[-1]), service.num_calls) == (3, FinalOutput, 4)


def test_where_it_is_the_end_the_server_is_unavailable(address: str, service: ClosingService) -> None:
    service.is_always = True
    with (
        StepwireClient(address, resume_seconds=0) as client,
        pytest.raises(Unavailable, match="the server cancelled the call") as caught,
    ):
        client.complete("Hi")
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_only_the_user_interrupts_a_command(address: str, service: ClosingService) -> None:
    service.is_always = True
    arguments = ["generate", "Hi", "--raw", "--timeout-seconds", "0.5", "--address", address]
    assert CliRunner().invoke(app, arguments).exit_code == 5
