"""Spans of OpenTelemetry's SDK, kept in memory for a test to look at. Knows nothing about what is traced."""

from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from telemetry.otel_spans import OtelSpans


class SpanMemory:
    """Remembers the spans that ended."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler or ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = OtelSpans(provider)

    def ended(self) -> tuple[ReadableSpan, ...]:
        """Return the spans, in the order in which they ended."""
        return self._exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        (span,) = [span for span in self.ended() if span.name == name]
        return span


def tree(spans: Iterable[ReadableSpan], parent_id: int | None) -> list[tuple[str, list[object]]]:
    """Return names and children below a span, by when they began."""
    spans = sorted(spans, key=lambda span: span.start_time or 0)
    return [
        (span.name, list(tree(spans, span_id(span))))
        for span in spans
        if (span.parent.span_id if span.parent else None) == parent_id
    ]


def span_id(span: ReadableSpan) -> int:
    """Return the id that children name as their parent."""
    assert span.context is not None
    number: int = span.context.span_id
    return number
