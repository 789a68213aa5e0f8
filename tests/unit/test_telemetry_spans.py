"""Spans by OpenTelemetry: W3C parents, sampling, attributes and failures."""

import sys
import threading

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.traced import make_spans, with_collector
from telemetry import otel_spans
from telemetry.otel_spans import OtelSpans
from tests.span_memory import SpanMemory

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"


def test_a_span_belongs_under_its_traceparent_and_names_itself_as_one() -> None:
    memory = SpanMemory()
    span = memory.spans.begin("outer", parent=PARENT, state="a=b", is_server=True, start_ns=1000)
    memory.spans.begin("inner", parent=span.traceparent).end(3000)
    span.set(stepwire__outcome="length", gen_ai__usage__output_tokens=3)
    span.end(4000)
    outer, inner = memory.one("outer"), memory.one("inner")
    assert outer.context is not None
    assert outer.parent is not None
    assert (outer.start_time, outer.end_time, outer.kind) == (1000, 4000, SpanKind.SERVER)
    assert f"{outer.context.trace_id:032x}" == PARENT[3:35]
    assert f"{outer.parent.span_id:016x}" == PARENT[36:52]
    assert outer.context.trace_state.to_header() == "a=b"
    assert dict(outer.attributes or {}) == {"stepwire.outcome": "length", "gen_ai.usage.output_tokens": 3}
    assert inner.parent is not None
    assert (inner.parent.span_id, inner.kind) == (outer.context.span_id, SpanKind.INTERNAL)


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{0:032x}-{0:016x}-01", f"zz{PARENT[2:]}"])
def test_without_a_parent_that_can_be_read_a_trace_begins(parent: str) -> None:
    memory = SpanMemory()
    memory.spans.begin("outer", parent=parent).end()
    assert memory.one("outer").parent is None


def test_what_the_caller_does_not_record_is_not_recorded() -> None:
    memory = SpanMemory()
    span = memory.spans.begin("outer", parent=UNSAMPLED)
    assert span.traceparent == ""
    span.set(stepwire__outcome="length")
    span.end()
    assert memory.ended() == ()


def test_the_sampler_decides_where_nobody_has() -> None:
    memory = SpanMemory(ALWAYS_OFF)
    assert memory.spans.begin("outer", parent="").traceparent == ""


def test_a_failure_has_its_kind() -> None:
    memory = SpanMemory()
    span = memory.spans.begin("outer", parent="")
    span.fail("queue_full", "too many wait")
    span.end()
    outer = memory.one("outer")
    assert (outer.status.status_code, outer.status.description) == (StatusCode.ERROR, "too many wait")
    assert dict(outer.attributes or {}) == {"error.type": "queue_full"}


def test_a_collector_that_does_not_answer_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    class Provider(TracerProvider):
        def shutdown(self) -> None:
            assert may_end.wait(60)

    monkeypatch.setattr(otel_spans, "_CLOSE_SECONDS", 0.01)
    OtelSpans(Provider(shutdown_on_exit=False)).close()
    assert not may_end.is_set()
    may_end.set()


def test_without_a_collector_there_are_no_spans() -> None:
    assert make_spans(SchedulerConfig(model="m"), process="engine") is None


@pytest.mark.parametrize(
    ("flag", "environment", "endpoint"),
    [
        ("", {}, ""),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://a:1"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1"},
            "http://b:1",
        ),
        ("http://c:1", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://c:1"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_where_spans_go(flag: str, environment: dict[str, str], endpoint: str) -> None:
    config = SchedulerConfig(model="m", otlp_endpoint=flag)
    assert with_collector(config, environment).otlp_endpoint == endpoint


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint is 'a:1', but must begin with http://"):
        with_collector(SchedulerConfig(model="m"), {"OTEL_EXPORTER_OTLP_ENDPOINT": "a:1"})


def test_tracing_without_the_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "telemetry.otel_spans")
    config = SchedulerConfig(model="m", otlp_endpoint="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"is not installed \(pip install 'stepwire\[tracing\]'\)"):
        make_spans(config, process="engine")
