"""Clients whose server goes away again and again: callers see one unbroken stream, and one end."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)
from stepwire_client import (
    AsyncStepwireClient,
    Cancelled,
    DeadlineExceeded,
    Delta,
    FinalOutput,
    FinishReason,
    GenerationRequest,
    InvalidRequest,
    StepwireClient,
    Unavailable,
)
from stepwire_client.bulk_window import BulkEvent

SEED = 2**63 + 5
TEXT = "abcdéfgh"
LIMIT_SECONDS = 10.0


@dataclass(slots=True)
class BreakingService(GenerationServiceServicer):
    """Tells TEXT, each character as a token, and breaks each call after so many tokens as it is told."""

    breaks: list[int | None]
    """Tokens that each call tells before it breaks; None: it ends. The last one counts for all later."""
    refusal: tuple[grpc.StatusCode, str] | None = None
    """How every second call is refused."""
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    num_calls: int = 0
    timeouts: list[float] = field(default_factory=list)
    has_begun: threading.Event = field(default_factory=threading.Event)

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:  # noqa: N802
        count = self._begin(context)
        for event, fields in self._events(request, count):
            yield pb.GenerateResponse(request_id=request.request_id, **{event: fields, **self._seed(event)})
        if count is not None:
            self._let_go(context)

    def GenerateMany(  # noqa: N802
        self, request_iterator: Iterator[pb.GenerateManyRequest], context: Any
    ) -> Iterator[pb.GenerateManyResponse]:
        count = self._begin(context)
        for message in request_iterator:
            request_id = message.generate.request_id
            for event, fields in self._events(message.generate, count):
                told = {event: fields, **self._seed(event)}
                yield pb.GenerateManyResponse(request_id=request_id, **told)
            if count is not None:
                error = pb.RequestError(code=14, message="gone", is_resumable=True, retry_after_ms=10)
                yield pb.GenerateManyResponse(request_id=request_id, error=error)

    def _begin(self, context: Any) -> int | None:
        self.num_calls += 1
        self.timeouts.append(context.time_remaining())
        self.has_begun.set()
        context.set_trailing_metadata((("x-request-id", "call"), ("retry-after-ms", "10")))
        if self.refusal is not None and self.num_calls % 2 == 0:
            context.abort(*self.refusal)
        return self.breaks.pop(0) if len(self.breaks) > 1 else self.breaks[0]

    def _events(self, request: pb.GenerateRequest, count: int | None) -> Iterator[tuple[str, Any]]:
        self.requests.append(request)
        token_ids = list(request.resume.token_ids)
        told = "".join(map(chr, token_ids))
        assert told == TEXT[: len(told)]
        if request.HasField("resume"):
            assert request.resume.num_text_bytes == len(told.encode())
        if token_ids:
            assert request.sampling.seed == SEED
        yield "status", types_pb2.StatusUpdate(status=types_pb2.REQUEST_STATUS_RUNNING)
        for character in TEXT[len(told) :][:count]:
            yield "delta", types_pb2.OutputDelta(text=character, token_ids=[ord(character)])
        if count is None:
            usage = types_pb2.Usage(num_prompt_tokens=3, num_output_tokens=len(TEXT))
            yield "final", types_pb2.FinalOutput(finish_reason=types_pb2.FINISH_REASON_LENGTH, usage=usage)

    def _seed(self, event: str) -> dict[str, int]:
        return {"seed": SEED} if event == "status" else {}

    def _let_go(self, context: Any) -> None:
        hints = (("x-request-id", "call"), ("stepwire-resume-seed", str(SEED)), ("retry-after-ms", "10"))
        context.set_trailing_metadata(hints)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is gone")


@pytest.fixture
def service() -> BreakingService:
    return BreakingService([3, 0, 2, None])  # type: ignore[abstract]


@pytest.fixture
def server(service: BreakingService) -> Iterator[Any]:
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    add_GenerationServiceServicer_to_server(service, server)
    server.port = server.add_insecure_port("127.0.0.1:0")  # type: ignore[attr-defined]
    server.start()
    yield server
    server.stop(grace=None).wait()


@pytest.fixture
def address(server: Any) -> str:
    return f"127.0.0.1:{server.port}"


def check_deltas(deltas: list[Delta]) -> None:
    assert [delta.text for delta in deltas] == list(TEXT)
    assert [token_id for delta in deltas for token_id in delta.token_ids] == list(map(ord, TEXT))


def test_a_stream_goes_on_over_broken_calls(address: str, service: BreakingService) -> None:
    with StepwireClient(address) as client, client.generate("Hi", request_id="r", top_k=3) as stream:
        check_deltas(list(stream))
        completion = stream.completion()
    assert (completion.text, completion.usage.num_output_tokens) == (TEXT, len(TEXT))
    assert stream.num_resumes == 3
    assert [len(request.resume.token_ids) for request in service.requests] == [0, 3, 3, 5]
    assert {(request.request_id, request.text, request.sampling.top_k) for request in service.requests} == {
        ("r", "Hi", 3)
    }
    assert not service.requests[0].HasField("resume")


async def test_a_stream_goes_on_over_broken_calls_with_asyncio(
    address: str, service: BreakingService
) -> None:
    async with AsyncStepwireClient(address) as client, client.generate("Hi") as stream:
        check_deltas([delta async for delta in stream])
        assert stream.final.finish_reason is FinishReason.LENGTH
        assert stream.num_resumes == 3
    assert [len(request.resume.token_ids) for request in service.requests] == [0, 3, 3, 5]


def test_a_server_that_is_not_back_yet_is_tried_again(address: str, service: BreakingService) -> None:
    service.refusal = (grpc.StatusCode.UNAVAILABLE, "no worker")
    with StepwireClient(address) as client:
        assert client.complete("Hi").text == TEXT
    assert service.num_calls == 7


def test_a_refusal_is_the_end_even_later(address: str, service: BreakingService) -> None:
    service.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "the pool is too small")
    with (
        StepwireClient(address) as client,
        client.generate("Hi") as stream,
        pytest.raises(InvalidRequest, match="the pool is too small"),
    ):
        stream.text()
    assert service.num_calls == 2


def test_a_client_may_be_told_not_to_resume(address: str, service: BreakingService) -> None:
    with StepwireClient(address, resume_seconds=0) as client, client.generate("Hi") as stream:
        assert [next(stream).text for _ in range(3)] == ["a", "b", "c"]
        with pytest.raises(Unavailable, match="the engine is gone") as caught:
            next(stream)
        assert (caught.value.is_resumable, caught.value.retry_after_seconds) == (True, 0.01)
    assert service.num_calls == 1
    with pytest.raises(InvalidRequest, match="resume_seconds is -1, but must be at least 0"):
        StepwireClient(address, resume_seconds=-1)


def test_the_deadline_is_of_all_calls_together(address: str, service: BreakingService) -> None:
    service.breaks = [0]
    with StepwireClient(address) as client, pytest.raises(DeadlineExceeded):
        client.complete("Hi", timeout_seconds=0.5)
    assert service.timeouts[-1] < service.timeouts[0] - 0.1


async def test_the_deadline_is_of_all_calls_together_with_asyncio(
    address: str, service: BreakingService
) -> None:
    service.breaks = [0]
    async with AsyncStepwireClient(address) as client:
        with pytest.raises(DeadlineExceeded):
            await client.complete("Hi", timeout_seconds=0.5)


def test_closing_ends_the_wait_for_the_next_call(address: str, service: BreakingService) -> None:
    service.breaks = [0]
    errors: list[Exception] = []
    with StepwireClient(address) as client:
        stream = client.generate("Hi")

        def read() -> None:
            try:
                stream.text()
            except Cancelled as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert service.has_begun.wait(LIMIT_SECONDS)
        stream.close()
        reader.join(LIMIT_SECONDS)
        assert not reader.is_alive()
    assert len(errors) == 1


def check_events(events: list[BulkEvent]) -> None:
    for request_id in ("a", "b"):
        told = [event for owner, event in events if owner == request_id]
        check_deltas([event for event in told if isinstance(event, Delta)])
        assert isinstance(told[-1], FinalOutput)
    assert len(events) == 2 * (len(TEXT) + 1)


def bulk_requests() -> list[GenerationRequest]:
    return [GenerationRequest.of("Hi", request_id=request_id) for request_id in ("a", "b")]


def test_a_bulk_goes_on_over_broken_streams(address: str, service: BreakingService) -> None:
    service.refusal = (grpc.StatusCode.UNAVAILABLE, "no worker")
    with StepwireClient(address) as client, client.generate_many(bulk_requests()) as stream:
        check_events(list(stream))


async def test_a_bulk_goes_on_over_broken_streams_with_asyncio(
    address: str, service: BreakingService
) -> None:
    service.refusal = (grpc.StatusCode.UNAVAILABLE, "no worker")
    async with AsyncStepwireClient(address) as client, client.generate_many(bulk_requests()) as stream:
        check_events([event async for event in stream])


def test_a_server_that_is_started_again_is_found(server: Any, service: BreakingService) -> None:
    service.breaks = [3, None]
    with StepwireClient(f"127.0.0.1:{server.port}") as client, client.generate("Hi") as stream:
        first = next(stream)
        server.stop(grace=None).wait()
        again = grpc.server(ThreadPoolExecutor(max_workers=4))
        add_GenerationServiceServicer_to_server(service, again)
        assert again.add_insecure_port(f"127.0.0.1:{server.port}") == server.port
        again.start()
        check_deltas([first, *stream])
        again.stop(grace=None).wait()


@pytest.mark.parametrize("is_bulk", [False, True])
def test_closing_the_client_ends_a_stream_that_waits(
    address: str, service: BreakingService, *, is_bulk: bool
) -> None:
    service.breaks = [0]
    client = StepwireClient(address)
    stream = client.generate_many(bulk_requests()) if is_bulk else client.generate("Hi")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        assert service.has_begun.wait(LIMIT_SECONDS)
        client.close()
        assert isinstance(reading.exception(LIMIT_SECONDS), Cancelled)


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_closing_the_client_ends_a_stream_that_waits_with_asyncio(
    address: str, service: BreakingService, *, is_bulk: bool
) -> None:
    service.breaks = [0]
    client = AsyncStepwireClient(address)
    stream: Any = client.generate_many(bulk_requests()) if is_bulk else client.generate("Hi")

    async def read() -> None:
        async for _ in stream:
            pass

    reading = asyncio.create_task(read())
    assert await asyncio.to_thread(service.has_begun.wait, LIMIT_SECONDS)
    await client.close()
    with pytest.raises(Cancelled):
        await asyncio.wait_for(reading, LIMIT_SECONDS)
