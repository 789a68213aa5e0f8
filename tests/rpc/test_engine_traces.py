"""The engine's spans of a traced request: its phases, and the steps that gave it tokens."""

from collections.abc import AsyncIterator

import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from scheduler_svc.engine.traces import MAX_STEPS_TOLD, RequestTraces
from telemetry.otel_spans import OtelSpan, OtelSpans
from tests.rpc.engine_bench import attached, new_request, running_engine
from tests.span_memory import SpanMemory, span_id, tree
from tests.stand_in_lanes import StandInLimits
from tests.stand_in_worker import StandInWorker

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARENT_ID = 0xB7AD6B7169203331
LIMITS = StandInLimits(num_blocks=64, max_num_seqs=4, max_model_len=256, max_num_batched_tokens=64)


@pytest.fixture
async def worker() -> AsyncIterator[StandInWorker]:
    """Run a stand-in worker; it must have seen no fault at the end."""
    worker = StandInWorker(LIMITS)
    await worker.start()
    yield worker
    await worker.stop()
    assert worker.faults == []


async def run(worker: StandInWorker, *requests: pb.NewRequest) -> SpanMemory:
    """Run requests to their ends; return what was told of them."""
    memory = SpanMemory()
    traces = RequestTraces(memory.spans)
    async with running_engine(worker.address, traces=traces) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(*requests)
        await probe.wait_ended(*(request.handle for request in requests))
        await engine.wait_idle()
    assert len(traces) == 0
    traces.close()
    return memory


async def test_phases_and_steps_of_a_request(worker: StandInWorker) -> None:
    memory = await run(worker, new_request(1, 5, max_tokens=3, traceparent=PARENT))
    step: tuple[str, list[object]] = ("stepwire.step", [])
    assert tree(memory.ended(), PARENT_ID) == [
        (
            "stepwire.engine",
            [
                ("stepwire.queue", []),
                ("stepwire.prefill", [step]),
                ("stepwire.decode", [step, step]),
            ],
        )
    ]
    assert {f"{span.context.trace_id:032x}" for span in memory.ended() if span.context} == {PARENT[3:35]}
    assert dict(memory.one("stepwire.engine").attributes or {}) == {
        "stepwire.request_id": "request-1",
        "stepwire.reason": "length",
        "stepwire.cached_tokens": 0,
        "gen_ai.usage.output_tokens": 3,
    }
    steps = [span for span in memory.ended() if span.name == "stepwire.step"]
    assert [(span.attributes or {})["stepwire.num_requests"] for span in steps] == [1, 1, 1]
    times = [(span.start_time or 0, span.end_time or 0) for span in memory.ended()]
    assert all(start <= end for start, end in times)


async def test_phases_follow_each_other(worker: StandInWorker) -> None:
    memory = await run(worker, new_request(1, 5, max_tokens=3, traceparent=PARENT))
    names = ("stepwire.queue", "stepwire.prefill", "stepwire.decode")
    queue, prefill, decode = (memory.one(name) for name in names)
    whole = memory.one("stepwire.engine")
    starts = [span.start_time for span in (queue, prefill, decode)]
    ends = [span.end_time for span in (queue, prefill, decode)]
    assert starts == [whole.start_time, *ends[:2]]
    assert ends[2] == whole.end_time


async def test_only_the_first_steps_of_a_long_request_are_told(worker: StandInWorker) -> None:
    memory = await run(worker, new_request(1, 5, max_tokens=MAX_STEPS_TOLD + 5, traceparent=PARENT))
    assert sum(span.name == "stepwire.step" for span in memory.ended()) == MAX_STEPS_TOLD


async def test_only_traced_requests_are_told(worker: StandInWorker) -> None:
    memory = await run(
        worker,
        new_request(1, 5, max_tokens=4),
        new_request(2, 5, max_tokens=4, traceparent=PARENT),
    )
    whole = memory.one("stepwire.engine")
    assert (whole.attributes or {})["stepwire.request_id"] == "request-2"
    assert all(span is whole or span.parent for span in memory.ended())


async def test_spans_that_cannot_be_told_are_logged(
    worker: StandInWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> OtelSpan:
        raise RuntimeError("no spans")

    monkeypatch.setattr(OtelSpans, "begin", fail)
    await run(worker, new_request(1, 5, max_tokens=3, traceparent=PARENT))
    assert "a request's spans cannot be told" in caplog.messages
    assert "RuntimeError: no spans" in caplog.text


async def test_a_refused_request_leaves_nothing(worker: StandInWorker) -> None:
    memory = SpanMemory()
    traces = RequestTraces(memory.spans)
    await worker.stop()
    async with running_engine(worker.address, traces=traces) as engine, attached(engine) as probe:
        await probe.submit(new_request(1, 5, traceparent=PARENT))
        await probe.wait_ended(1)
    traces.close()
    # No worker ever came: the request was refused before it was anybody's.
    assert memory.ended() == ()
    assert len(traces) == 0
    await worker.start()


async def test_an_abort_in_the_queue(worker: StandInWorker) -> None:
    memory = SpanMemory()
    traces = RequestTraces(memory.spans)
    async with running_engine(worker.address, traces=traces) as engine, attached(engine) as probe:
        await probe.wait_ready()
        # In one message, so that no step can come between.
        abort = pb.AbortById(request_id="request-9", num_requests_before=1)
        new = new_request(9, 5, traceparent=PARENT)
        await probe.call.write(pb.AttachRequest(new_requests=[new], aborts=[abort]))
        await probe.wait_ended(9)
        await engine.wait_idle()
    traces.close()
    assert tree(memory.ended(), PARENT_ID) == [("stepwire.engine", [("stepwire.queue", [])])]
    whole = memory.one("stepwire.engine")
    assert (whole.attributes or {})["stepwire.reason"] == "abort"
    assert span_id(whole) != PARENT_ID
