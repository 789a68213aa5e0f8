"""Requests that end faster than their spans can be made."""

import logging
import threading
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.plan import FinishedRequest
from scheduler_svc.core.types import FinishReason, Request, SamplingParams
from scheduler_svc.engine import traces as traces_module
from scheduler_svc.engine.live_requests import LiveRequest
from scheduler_svc.engine.traces import REQUEST_SPAN, RequestTraces
from scheduler_svc.engine.values import ArrivedRequest
from telemetry.otel_spans import OtelSpan
from tests.span_memory import SpanMemory

LIMIT_SECONDS = 10.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def run(traces: RequestTraces, handle: int) -> None:
    """Have a traced request come and end."""
    request = Request(
        request_id=str(handle),
        prompt_token_ids=np.zeros(1, np.int32),
        sampling=SamplingParams(),
        owner=1,
        handle=handle,
    )
    traces.begin(ArrivedRequest(request=request, deadline_ns=None, traceparent=PARENT), 1)
    live = LiveRequest(request_id=str(handle), owner=1, handle=handle, arrival_ns=1)
    finished = FinishedRequest(
        request_id=str(handle),
        owner=1,
        handle=handle,
        reason=FinishReason.ABORT,
        matched_stop_token_id=None,
        num_output_tokens=0,
        num_prefix_hit_tokens=0,
        message="",
    )
    traces.end(live, finished)


def test_of_requests_past_the_bound_no_spans_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(traces_module, "MAX_UNTOLD", 2)
    memory, may_tell = SpanMemory(), threading.Event()
    begin = memory.spans.begin

    def begin_when_allowed(*arguments: Any, **options: Any) -> OtelSpan:
        assert may_tell.wait(LIMIT_SECONDS)
        return begin(*arguments, **options)

    monkeypatch.setattr(memory.spans, "begin", begin_when_allowed)
    traces = RequestTraces(memory.spans)
    for handle in range(1, 6):
        run(traces, handle)
    may_tell.set()
    traces.close()
    told = [span for span in memory.ended() if span.name == REQUEST_SPAN]
    assert [(span.attributes or {})["stepwire.request_id"] for span in told] == ["1", "2"]
    assert len(traces) == 0
    assert caplog.messages == ["spans are lost: requests end faster than they can be told; sample fewer"]
