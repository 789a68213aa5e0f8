"""What belongs to the call that runs now: its id, its request's id, and the trace that it is part of.

A context variable, so that whatever logs below a call says which one it was. Knows nothing about calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Empty fields are not known."""

    call_id: str = ""
    """Of one RPC."""
    request_id: str = ""
    """Of one generation: a GenerateMany call has many."""
    traceparent: str = ""
    """W3C trace context, as the metadata has it."""
    tracestate: str = ""


NO_CALL = CallContext()
_current: ContextVar[CallContext] = ContextVar("stepwire_call", default=NO_CALL)


def current_call() -> CallContext:
    """Tell which call runs now."""
    return _current.get()


@contextmanager
def within_call(context: CallContext) -> Iterator[None]:
    """Let the code in the ``with`` block run for a call."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def within_request(request_id: str) -> Iterator[None]:
    """Let the code in the ``with`` block run for a request of the call."""
    with within_call(replace(_current.get(), request_id=request_id)):
        yield
