"""What the engine tells of the requests that are traced: how long they queued, prefilled and decoded.

Notes a few times while a request lives; a thread makes spans of them when it has ended, so that the loop
does not. Of steps, those that gave a request its first tokens are told each. Knows nothing about sampling:
a request without a ``traceparent`` is not traced.
"""

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

from scheduler_svc.core.plan import FinishedRequest, StepOutputs
from scheduler_svc.engine.live_requests import LiveRequest
from scheduler_svc.engine.values import ArrivedRequest, ResultArrived, StartedRequest
from telemetry.spans import Span, Spans

_log = logging.getLogger(__name__)

REQUEST_SPAN = "stepwire.engine"
PHASE_SPANS = ("stepwire.queue", "stepwire.prefill", "stepwire.decode")
"""From arrival to the first step, to the first token, to the end."""
STEP_SPAN = "stepwire.step"
MAX_STEPS_TOLD = 16
"""A step's span for each token would be as much work as the tokens."""
MAX_UNTOLD = 4096
"""Ended requests that may wait for their spans, seconds of work: more are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    group: int
    step_id: int
    num_requests: int
    start_ns: int
    end_ns: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Trace:
    """What is known of one traced request; times are of the monotonic clock."""

    parent: str
    arrival_ns: int
    started_ns: int = 0
    num_cached_tokens: int = 0
    first_token_ns: int = 0
    ended_ns: int = 0
    steps: list[_Step] = field(default_factory=list)


class RequestTraces:
    """The traced requests that live."""

    def __init__(self, spans: Spans | None) -> None:
        self._spans = spans
        self._live: dict[tuple[int, int], _Trace] = {}
        """By owner and handle."""
        # Without tracing it starts no thread.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._untold: deque[Future[None]] = deque()
        """Requests that ended, oldest first; those told already are taken out when the next one comes."""
        self._is_any_lost = False

    def __len__(self) -> int:
        """Tell how many requests are traced now."""
        return len(self._live)

    def begin(self, arrived: ArrivedRequest, arrival_ns: int) -> None:
        """Trace a request that the core has taken, if that is wanted."""
        if arrived.traceparent and self._spans is not None:
            key = arrived.request.owner, arrived.request.handle
            self._live[key] = _Trace(parent=arrived.traceparent, arrival_ns=arrival_ns)

    def note_started(self, owner: int, started: StartedRequest) -> None:
        """Note a request's first step."""
        trace = self._live.get((owner, started.handle))
        if trace is not None:
            trace.started_ns = trace.arrival_ns + started.queue_time_ns
            trace.num_cached_tokens = started.num_cached_tokens

    def note_step(self, outputs: StepOutputs, arrived: ResultArrived) -> None:
        """Note a step's tokens; only worth calling while something is traced."""
        answered, now_ns, num_requests = arrived.answered, time.monotonic_ns(), len(outputs.owners)
        assert answered is not None, "a link says what it sent"
        step = _Step(
            group=arrived.group,
            step_id=arrived.result.step_id,
            num_requests=num_requests,
            start_ns=now_ns - round(1e9 * answered.seconds_since_sent),
            end_ns=now_ns,
        )
        for key in zip(outputs.owners.tolist(), outputs.handles.tolist(), strict=True):
            trace = self._live.get(key)
            if trace is not None:
                trace.first_token_ns = trace.first_token_ns or now_ns
                if len(trace.steps) < MAX_STEPS_TOLD:
                    trace.steps.append(step)

    def end(self, live: LiveRequest, finished: FinishedRequest) -> None:
        """Tell a request that ended."""
        trace = self._live.pop((live.owner, live.handle), None)
        if trace is not None:
            assert self._spans is not None, "nothing is traced without"
            trace.ended_ns = time.monotonic_ns()
            self._tell_later(self._spans, trace, finished)

    def _tell_later(self, spans: Spans, trace: _Trace, finished: FinishedRequest) -> None:
        untold = self._untold
        while untold and untold[0].done():
            untold.popleft()
        if len(untold) < MAX_UNTOLD:
            untold.append(self._writer.submit(_tell, spans, trace, finished))
            untold[-1].add_done_callback(_log_failure)
        elif not self._is_any_lost:
            self._is_any_lost = True
            _log.warning("spans are lost: requests end faster than they can be told; sample fewer")

    def close(self) -> None:
        """Tell what ended, and stop."""
        self._writer.shutdown()
        if self._spans is not None:
            self._spans.close()


def _log_failure(told: "Future[None]") -> None:
    error = told.exception()
    if error is not None:
        _log.error("a request's spans cannot be told", exc_info=error)


def _tell(spans: Spans, trace: _Trace, finished: FinishedRequest) -> None:
    """Make a request's spans, which carry times of the wall clock."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    whole = spans.begin(REQUEST_SPAN, parent=trace.parent, start_ns=offset_ns + trace.arrival_ns)
    whole.set(
        stepwire__request_id=finished.request_id,
        stepwire__reason=finished.reason.name.lower(),
        stepwire__cached_tokens=trace.num_cached_tokens,
        gen_ai__usage__output_tokens=finished.num_output_tokens,
    )
    marks_ns = [trace.arrival_ns, trace.started_ns, trace.first_token_ns]
    reached_ns = [mark_ns for mark_ns in marks_ns if mark_ns]
    phases = [
        _phase(spans, name, whole=whole, start_ns=offset_ns + start_ns, end_ns=offset_ns + end_ns)
        for name, (start_ns, end_ns) in zip(
            PHASE_SPANS, pairwise([*reached_ns, trace.ended_ns]), strict=False
        )
    ]
    for number, step in enumerate(trace.steps):
        # The first one ends the prompt's phase, the others come after it.
        parent = phases[1 if number == 0 else 2]
        span = spans.begin(STEP_SPAN, parent=parent, start_ns=offset_ns + step.start_ns)
        span.set(
            stepwire__step_id=step.step_id,
            stepwire__worker_group=step.group,
            stepwire__num_requests=step.num_requests,
        )
        span.end(offset_ns + step.end_ns)
    whole.end(offset_ns + trace.ended_ns)


def _phase(spans: Spans, name: str, *, whole: Span, start_ns: int, end_ns: int) -> str:
    """Tell one phase of a request; return what its steps belong under."""
    span = spans.begin(name, parent=whole.traceparent, start_ns=start_ns)
    span.end(end_ns)
    return span.traceparent
