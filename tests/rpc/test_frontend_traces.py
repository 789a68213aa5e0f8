"""What a front end tells of a request: a span under the client's trace, and log lines with ids."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.trace import StatusCode
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb

from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.watch import PROMPT_SPAN, REQUEST_SPAN, Watch
from telemetry.log_lines import JsonFormatter
from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench, running_frontend, write_model_folder
from tests.span_memory import SpanMemory, span_id, tree

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
PARENT_ID = 0xB7AD6B7169203331


@pytest.fixture
def memory() -> SpanMemory:
    return SpanMemory()


@pytest.fixture
async def bench(tmp_path: Path, memory: SpanMemory) -> AsyncIterator[FrontendBench]:
    watch = Watch(FrontendMeter.on_board(), memory.spans)
    folder = write_model_folder(tmp_path)
    async with running_frontend(folder, tmp_path, drain_seconds=0.2, watch=watch) as bench:
        yield bench


class Lines(logging.Handler):
    """Keeps each line as it would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Return the log's lines as JSON objects."""
    handler, logger = Lines(), logging.getLogger("stepwire")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


async def generate(bench: FrontendBench, *metadata: tuple[str, str]) -> engine_pb.NewRequest:
    """Run a request of two tokens; return it as the engine got it."""
    call = bench.stub.Generate(pb.GenerateRequest(request_id="r1", text="abc"), metadata=metadata)
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "xy")
    bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in call:
            continue
        await call.code()
    return new


async def wait_for_end(memory: SpanMemory) -> None:
    """Wait until the request's span ended: a moment after the client was told."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not any(span.name == REQUEST_SPAN for span in memory.ended()):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_spans_go_from_the_client_to_the_engine(bench: FrontendBench, memory: SpanMemory) -> None:
    new = await generate(bench, ("traceparent", PARENT), ("tracestate", "vendor=1"))
    await wait_for_end(memory)
    assert tree(memory.ended(), PARENT_ID) == [(REQUEST_SPAN, [(PROMPT_SPAN, [])])]
    span = memory.one(REQUEST_SPAN)
    assert new.traceparent == f"00-{TRACE_ID}-{span_id(span):016x}-01"
    assert span.context is not None
    assert span.context.trace_state.to_header() == "vendor=1"
    attributes = dict(span.attributes or {})
    assert attributes.pop("stepwire.first_token_seconds")
    assert attributes == {
        "rpc.system": "grpc",
        "stepwire.request_id": "r1",
        "stepwire.outcome": "length",
        "stepwire.cached_tokens": 0,
        "stepwire.queue_seconds": 0.0,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
    }


async def test_a_trace_that_the_client_does_not_record_is_left_alone(
    bench: FrontendBench, memory: SpanMemory
) -> None:
    new = await generate(bench, ("traceparent", f"{PARENT[:-2]}00"))
    assert new.traceparent == ""
    assert memory.ended() == ()


async def test_a_refused_request_is_a_failed_span(bench: FrontendBench, memory: SpanMemory) -> None:
    request = pb.GenerateRequest(text="abc")
    request.sampling.top_p = 2
    with pytest.raises(grpc.aio.AioRpcError):
        await asyncio.wait_for(bench.stub.Generate(request).read(), LIMIT_SECONDS)
    await wait_for_end(memory)
    span = memory.one(REQUEST_SPAN)
    assert span.status.status_code is StatusCode.ERROR
    assert str(span.status.description).startswith("sampling.top_p is 2.0")
    assert (span.attributes or {})["stepwire.outcome"] == "invalid"
    parent = memory.one(PROMPT_SPAN).parent
    assert parent is not None
    assert parent.span_id == span_id(span)


async def test_log_lines_have_the_ids(
    bench: FrontendBench, lines: list[dict[str, Any]], memory: SpanMemory
) -> None:
    await generate(bench, ("x-request-id", "call-7"), ("traceparent", PARENT))
    await wait_for_end(memory)
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(lines) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    request, access = lines
    ids = {"call_id": "call-7", "trace_id": TRACE_ID}
    assert request.items() >= {**ids, "logger": "stepwire.requests", "request_id": "r1"}.items()
    assert request.items() >= {"outcome": "length", "num_prompt_tokens": 3, "num_output_tokens": 2}.items()
    assert access.items() >= {**ids, "logger": "stepwire.access", "code": "OK", "level": "info"}.items()
    assert access["method"] == "/stepwire.v1.GenerationService/Generate"
    assert "request_id" not in access


async def end_with_a_cancelled_call(bench: FrontendBench, call: Any, new: engine_pb.NewRequest) -> None:
    call.cancel()
    assert (await bench.engine.next_end()).handle == new.handle


async def end_by_a_lost_engine(bench: FrontendBench, call: Any, new: engine_pb.NewRequest) -> None:
    del new
    bench.engine.break_stream()
    assert await asyncio.wait_for(call.code(), LIMIT_SECONDS) is grpc.StatusCode.UNAVAILABLE


async def end_at_the_engine_s_deadline(bench: FrontendBench, call: Any, new: engine_pb.NewRequest) -> None:
    bench.engine.end(new.handle, engine_pb.REQUEST_END_DEADLINE)
    assert await asyncio.wait_for(call.code(), LIMIT_SECONDS) is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (end_with_a_cancelled_call, "cancelled"),
        (end_by_a_lost_engine, "interrupted"),
        (end_at_the_engine_s_deadline, "deadline"),
    ],
)
async def test_tokens_of_a_request_that_ends_early_are_told(
    bench: FrontendBench, lines: list[dict[str, Any]], memory: SpanMemory, end: Any, outcome: str
) -> None:
    request = pb.GenerateRequest(request_id="r1", text="abc")
    request.resume.token_ids.extend(b"de")
    call = bench.stub.Generate(request)
    new = await bench.engine.next_request()
    bench.engine.send_text(new.handle, "xyz")
    await asyncio.wait_for(call.read(), LIMIT_SECONDS)
    await end(bench, call, new)
    await wait_for_end(memory)
    async with asyncio.timeout(LIMIT_SECONDS):
        while not lines:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    counts = {"num_prompt_tokens": 3, "num_output_tokens": 5, "num_resumed_tokens": 2}
    assert lines[0].items() >= {"outcome": outcome, **counts}.items()
    assert lines[0]["message"] == f"r1 {outcome}, 3 prompt tokens, 5 output tokens"
    assert (memory.one(REQUEST_SPAN).attributes or {})["gen_ai.usage.output_tokens"] == 5


@pytest.mark.parametrize(
    ("request_id", "told"),
    [("x" * 100_000, "x" * 128), ("r1\n2026 forged", r"r1\n2026 forged"), ("läuft", "läuft")],
)
async def test_an_odd_id_neither_floods_the_log_nor_begins_a_line(
    bench: FrontendBench, lines: list[dict[str, Any]], memory: SpanMemory, request_id: str, told: str
) -> None:
    request = pb.GenerateRequest(request_id=request_id, text="")
    with pytest.raises(grpc.aio.AioRpcError):
        await asyncio.wait_for(bench.stub.Generate(request).read(), LIMIT_SECONDS)
    await wait_for_end(memory)
    assert (memory.one(REQUEST_SPAN).attributes or {})["stepwire.request_id"] == told
    async with asyncio.timeout(LIMIT_SECONDS):
        while not lines:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert lines[0]["request_id"] == told
    assert lines[0]["message"] == f"{told} invalid, 0 prompt tokens, 0 output tokens"
