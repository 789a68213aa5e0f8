"""What the services ask of a tracer: spans that name their parent by its W3C ``traceparent``.

Without tracing there is none of it. Knows nothing about OpenTelemetry (otel_spans.py does).
"""

from typing import Protocol

Attribute = str | int | float | bool


class Span(Protocol):
    """Something that takes time, as a trace shows it."""

    @property
    def traceparent(self) -> str:
        """The parent of what happens within it; empty where the trace is not recorded."""

    def set(self, **attributes: Attribute) -> None:
        """Tell more of it; of a name, ``__`` becomes a dot."""

    def fail(self, kind: str, message: str) -> None:
        """Mark it as failed."""

    def end(self, end_ns: int | None = None) -> None:
        """End it, now or at a time of the wall clock."""


class Spans(Protocol):
    """Makes spans, and sends them away."""

    def begin(
        self, name: str, *, parent: str, state: str = "", is_server: bool = False, start_ns: int | None = None
    ) -> Span:
        """Begin a span, now or at a time of the wall clock.

        Args:
            name: what it is, the same for all of its kind.
            parent: ``traceparent``; empty or malformed: the span begins a trace.
            state: ``tracestate`` that came with it.
            is_server: whether the parent belongs to who calls us.
            start_ns: when it began.
        """

    def close(self) -> None:
        """Send what is left, if that is quick, and stop."""
