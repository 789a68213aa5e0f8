"""Spans by OpenTelemetry, sent over OTLP. Imported where tracing is on only: the extra ``tracing`` brings it.

The SDK reads its standard environment by itself: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and the rest. Knows nothing about what is traced.
"""

import threading

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from telemetry.spans import Attribute

_CLOSE_SECONDS = 1.0
"""A stop does not wait longer for a collector that does not answer."""
_PROPAGATOR = TraceContextTextMapPropagator()


class OtelSpan:
    """One span of the SDK."""

    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """The parent of what happens within it; empty where the trace is not recorded."""
        context = self._span.get_span_context()
        if not context.trace_flags.sampled:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def set(self, **attributes: Attribute) -> None:
        """Tell more of it; of a name, ``__`` becomes a dot."""
        for name, value in attributes.items():
            self._span.set_attribute(name.replace("__", "."), value)

    def fail(self, kind: str, message: str) -> None:
        """Mark it as failed."""
        self.set(error__type=kind)
        self._span.set_status(Status(StatusCode.ERROR, message))

    def end(self, end_ns: int | None = None) -> None:
        """End it, now or at a time of the wall clock."""
        self._span.end(end_ns)


class OtelSpans:
    """Makes spans with a provider of the SDK."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stepwire")

    def begin(
        self, name: str, *, parent: str, state: str = "", is_server: bool = False, start_ns: int | None = None
    ) -> OtelSpan:
        """Begin a span, now or at a time of the wall clock."""
        carrier = {"traceparent": parent, "tracestate": state}
        return OtelSpan(
            self._tracer.start_span(
                name,
                context=_PROPAGATOR.extract(carrier, Context()),
                kind=SpanKind.SERVER if is_server else SpanKind.INTERNAL,
                start_time=start_ns,
            )
        )

    def close(self) -> None:
        """Send what is left, if that is quick, and stop."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


def otlp_spans(endpoint: str, *, process: str) -> OtelSpans:
    """Send spans of this process to a collector, in the background.

    Args:
        endpoint: ``http://HOST:PORT``, or ``https://…``, of OTLP over gRPC.
        process: tells the service's processes apart.
    """
    resource = Resource.create({"stepwire.process": process})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "stepwire"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtelSpans(provider)
