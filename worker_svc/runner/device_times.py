"""How long the device computed a step, and how long it had nothing to do before it.

Steps begin and end by one clock: a GPU's own, or the host's where launching or waiting computes. Knows
nothing about what a step computes, nor who reads the clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """Of one step."""

    busy_ns: int
    idle_ns: int
    """From the end of the step before to its own begin."""


class AwaitedIdle:
    """Tells which idle time somebody minds: what passed while lanes were held.

    What a step tells reaches back to the last one that told anything: lanes must have been held before each
    in between, too.
    """

    def __init__(self) -> None:
        self._was_awaited = True

    def of(self, times: DeviceTimes, *, is_awaited: bool) -> int:
        """Return how much of a step's idle time counts, in ns; steps come in order.

        Args:
            times: The step's; none at all where it tells nothing.
            is_awaited: Whether lanes were held before it.
        """
        is_awaited = is_awaited and self._was_awaited
        self._was_awaited = is_awaited or times.busy_ns > 0
        return times.idle_ns if is_awaited else 0


class StepTimes:
    """Tells each step's times from when it and the one before began and ended."""

    def __init__(self) -> None:
        self._last_end_ns: int | None = None

    def of(self, start_ns: int, end_ns: int) -> DeviceTimes:
        """Tell the times of a step that was begun and ended then; steps come in order."""
        last_end_ns = start_ns if self._last_end_ns is None else self._last_end_ns
        begin_ns = max(start_ns, last_end_ns)
        self._last_end_ns = end_ns
        return DeviceTimes(busy_ns=end_ns - begin_ns, idle_ns=begin_ns - last_end_ns)
