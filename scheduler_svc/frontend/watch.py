"""What is told of each request from its arrival to its end: counts, a log line, and spans if it is traced.

Knows nothing about how a request runs.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.meter import FrontendMeter, outcome_of
from scheduler_svc.frontend.values import AskedRequest, CheckedRequest, Final
from telemetry.call_context import current_call, within_request
from telemetry.spans import Span, Spans

_log = logging.getLogger("stepwire.requests")
REQUEST_SPAN = "stepwire.request"
PROMPT_SPAN = "stepwire.read_prompt"
_MAX_ID_CHARACTERS = 128
"""As many as an id may have; a longer one comes here before it is refused."""


@dataclass(slots=True, kw_only=True)
class WatchedRequest:
    """One request while it runs."""

    meter: FrontendMeter
    spans: Spans | None
    span: Span | None
    """None where nothing is traced."""
    outcome: str = ""
    num_prompt_tokens: int = 0
    num_resumed_tokens: int = 0
    """Of the output, those that the client had already."""
    generation: Generation | None = None
    """None before there is one."""

    @property
    def num_output_tokens(self) -> int:
        """What has come until now, however the request ends."""
        return 0 if self.generation is None else self.generation.num_tokens

    @property
    def traceparent(self) -> str:
        """Under what the engine's spans of this request belong; empty where none are wanted."""
        return "" if self.span is None else self.span.traceparent

    @contextmanager
    def reading_prompt(self) -> Iterator[None]:
        """Watch the check and the tokenizing, which the ``with`` block does."""
        if self.spans is None or not self.traceparent:
            yield
            return
        span = self.spans.begin(PROMPT_SPAN, parent=self.traceparent)
        try:
            yield
        finally:
            span.end()

    def traced(self, checked: CheckedRequest) -> CheckedRequest:
        """Note the prompt; return the request as the engine shall have it."""
        self.num_prompt_tokens = len(checked.prompt_token_ids)
        return replace(checked, traceparent=self.traceparent) if self.traceparent else checked

    def note_generation(self, generation: Generation, asked: AskedRequest) -> None:
        """Note what counts the output, with the tokens that a resumed request brought."""
        self.generation = generation
        self.num_resumed_tokens = 0 if asked.resume is None else len(asked.resume.token_ids)

    def note_final(self, final: Final) -> None:
        """Note an end that is no error."""
        self.outcome = final.reason.name.lower()
        self.meter.note_final(final, num_known_tokens=self.num_resumed_tokens)
        if self.span is not None:
            self.span.set(
                gen_ai__usage__input_tokens=final.num_prompt_tokens,
                gen_ai__usage__output_tokens=final.num_output_tokens,
                stepwire__cached_tokens=final.num_cached_tokens,
                stepwire__queue_seconds=final.queue_time_ns / 1e9,
                stepwire__first_token_seconds=final.first_token_time_ns / 1e9,
            )


class Watch:
    """Watches all requests of one front end."""

    def __init__(self, meter: FrontendMeter, spans: Spans | None = None) -> None:
        self.meter = meter
        self._spans = spans

    @contextmanager
    def request(self, request_id: str) -> Iterator[WatchedRequest]:
        """Watch a request, which the ``with`` block runs; of an odd id is told what a log line can hold."""
        call, span, request_id = current_call(), None, _as_told(request_id)
        if self._spans is not None:
            span = self._spans.begin(
                REQUEST_SPAN, parent=call.traceparent, state=call.tracestate, is_server=True
            )
            span.set(stepwire__request_id=request_id, rpc__system="grpc")
        watched = WatchedRequest(meter=self.meter, spans=self._spans, span=span)
        with within_request(request_id):
            try:
                with self.meter.request():
                    yield watched
            except BaseException as error:
                watched.outcome = outcome_of(error)
                if span is not None:
                    span.set(gen_ai__usage__output_tokens=watched.num_output_tokens)
                    span.fail(watched.outcome, str(error))
                raise
            finally:
                if span is not None:
                    span.set(stepwire__outcome=watched.outcome)
                    span.end()
                _log_end(request_id, watched)

    def close(self) -> None:
        """Send the last spans."""
        if self._spans is not None:
            self._spans.close()


def _as_told(request_id: str) -> str:
    """Cut an id that would flood the log, and escape one that would begin a line of its own."""
    shown = request_id[:_MAX_ID_CHARACTERS]
    return shown if shown.isprintable() else ascii(shown)[1:-1]


def _log_end(request_id: str, watched: WatchedRequest) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    num_prompt, num_output = watched.num_prompt_tokens, watched.num_output_tokens
    fields = {
        "outcome": watched.outcome,
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "num_resumed_tokens": watched.num_resumed_tokens,
    }
    _log.info(
        "%s %s, %d prompt tokens, %d output tokens",
        request_id,
        watched.outcome,
        num_prompt,
        num_output,
        extra={"fields": fields},
    )
