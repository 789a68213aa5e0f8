"""Whether a call that was cancelled had come to its client's deadline.

The client's own reset comes first as a rule, and looks like any other cancelling. Knows nothing about
what the call does.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property

_MARGIN_SECONDS = 0.05
"""A little for the ways of request and reset."""
_MARGIN_SHARE = 0.02
"""gRPC's clients round a timeout up by 1 % where they tell it, but keep the exact one themselves."""


class CallDeadline:
    """One call's deadline."""

    def __init__(self, seconds_left: Callable[[], float | None]) -> None:
        """Take what tells the time that is left, None without a deadline, when the call begins."""
        self._seconds_left = seconds_left
        self._margin_seconds = _MARGIN_SECONDS + _MARGIN_SHARE * (seconds_left() or 0)

    @cached_property
    def is_reached(self) -> bool:
        """Whether it was there when this was asked first: all who tell of a cancelling tell the same."""
        seconds_left = self._seconds_left()
        return seconds_left is not None and seconds_left <= self._margin_seconds


_current: ContextVar[CallDeadline | None] = ContextVar("stepwire_call_deadline", default=None)


def note_deadline(deadline: CallDeadline) -> None:
    """Let the rest of this task, and those it starts, run for a call with this deadline."""
    _current.set(deadline)


def is_cancelled_by_deadline() -> bool:
    """Tell, when the running call is cancelled, whether that is because of its deadline."""
    deadline = _current.get()
    return deadline is not None and deadline.is_reached
