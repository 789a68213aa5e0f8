"""How long the device computed a step, and how long it had nothing to do before it.

On a GPU by events in its queue, on a CPU by the host's clock. Knows nothing about what a step computes.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """Of one step."""

    busy_ns: int
    idle_ns: int
    """From the end of the step before to its own begin."""


class HostClock:
    """For devices that compute while a step is launched or waited for."""

    def __init__(self) -> None:
        self._last_end_ns: int | None = None

    def times(self, start_ns: int, end_ns: int) -> DeviceTimes:
        """Tell the times of a step that was launched and finished then; steps come in order."""
        last_end_ns = start_ns if self._last_end_ns is None else self._last_end_ns
        begin_ns = max(start_ns, last_end_ns)
        self._last_end_ns = end_ns
        return DeviceTimes(busy_ns=end_ns - begin_ns, idle_ns=begin_ns - last_end_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Events around one step."""

    previous_end: torch.cuda.Event | None
    begin: torch.cuda.Event
    end: torch.cuda.Event

    def read(self) -> DeviceTimes:
        """Tell the step's times, once its end has been reached."""
        idle_ms = 0.0 if self.previous_end is None else self.previous_end.elapsed_time(self.begin)
        busy_ms = self.begin.elapsed_time(self.end)
        return DeviceTimes(busy_ns=round(1e6 * busy_ms), idle_ns=round(1e6 * idle_ms))


class EventClock:
    """Marks where steps begin and end in a GPU's queue. Used by one thread.

    Args:
        num_steps: How many steps may be marked before the oldest is read, and one more.
    """

    def __init__(self, num_steps: int) -> None:
        self._pairs = [(_make_event(), _make_event()) for _ in range(num_steps)]
        self._next = 0
        self._has_begun = False
        self._previous_end: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Mark a step's begin; one that was never ended, since it samples nothing, is part of the next."""
        if not self._has_begun:
            self._pairs[self._next][0].record()
            self._has_begun = True

    def end(self) -> StepTiming:
        """Mark a step's end."""
        begin, end = self._pairs[self._next]
        end.record()
        timing = StepTiming(previous_end=self._previous_end, begin=begin, end=end)
        self._next = (self._next + 1) % len(self._pairs)
        self._has_begun = False
        self._previous_end = end
        return timing


def _make_event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
