"""Spans of a whole scheduler service, as a collector gets them, and its log as JSON lines."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from stepwire.v1 import generation_service_pb2, types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from tools.services import running

LIMIT_SECONDS = 30.0
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
NUM_TOKENS = 2


class Collector(TraceServiceServicer):
    """Remembers each span it gets: the process that sent it, its name and ids."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self._changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Take spans in."""
        with self._changed:
            for resource_spans in request.resource_spans:
                told = {item.key: item.value.string_value for item in resource_spans.resource.attributes}
                assert told["service.name"] == "chosen"
                for scope in resource_spans.scope_spans:
                    self.spans += [(told["stepwire.process"], span) for span in scope.spans]
            self._changed.notify_all()
        return pb.ExportTraceServiceResponse()

    def wait_for(self, num_spans: int) -> list[tuple[str, Any]]:
        """Wait until so many spans came."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.spans) >= num_spans, LIMIT_SECONDS), self.spans
            return list(self.spans)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector, and have OpenTelemetry's environment name it."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chosen")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield collector
    server.stop(None).wait(LIMIT_SECONDS)


def generate(address: str) -> None:
    """Run one request within a trace of ours."""
    request = generation_service_pb2.GenerateRequest(request_id="r1")
    request.token_ids.ids.extend([5, 6, 7])
    request.stop.CopyFrom(types_pb2.StopParams(max_tokens=NUM_TOKENS, ignore_eos=True))
    metadata = (("traceparent", f"00-{TRACE_ID}-b7ad6b7169203331-01"), ("x-request-id", "call-7"))
    with grpc.insecure_channel(address) as channel:
        stub = GenerationServiceStub(channel)
        list(stub.Generate(request, metadata=metadata, wait_for_ready=True, timeout=LIMIT_SECONDS))


def test_a_trace_goes_from_the_client_to_the_step(
    collector: Collector, checkpoint_folder: Callable[[str], Path]
) -> None:
    common = ("--model", str(checkpoint_folder("qwen3_tiny")), "--port", "0")
    with running("tests.stand_in_process", *common) as worker:
        flags = ("--worker", worker.address(), "--log-format", "json", "--max-lease-steps", "1")
        with running("scheduler_svc", *common, *flags) as scheduler:
            scheduler.wait_for("serves on", LIMIT_SECONDS)
            generate(scheduler.address())
            spans = collector.wait_for(2 + 4 + NUM_TOKENS)
            access_line = scheduler.wait_for("/stepwire.v1.GenerationService/Generate OK", LIMIT_SECONDS)
    assert sorted((process, span.name) for process, span in spans) == [
        ("engine", "stepwire.decode"),
        ("engine", "stepwire.engine"),
        ("engine", "stepwire.prefill"),
        ("engine", "stepwire.queue"),
        *[("engine", "stepwire.step")] * NUM_TOKENS,
        ("front end 0", "stepwire.read_prompt"),
        ("front end 0", "stepwire.request"),
    ]
    assert {span.trace_id.hex() for _, span in spans} == {TRACE_ID}
    ids = {span.name: span.span_id for _, span in spans}
    parents = {span.name: span.parent_span_id for _, span in spans if span.name != "stepwire.step"}
    assert parents["stepwire.request"].hex() == "b7ad6b7169203331"
    assert parents["stepwire.engine"] == ids["stepwire.request"]
    assert parents["stepwire.decode"] == ids["stepwire.engine"]
    access = json.loads(access_line)
    assert (access["call_id"], access["trace_id"], access["process"]) == ("call-7", TRACE_ID, "front end 0")
