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
