"""The numbers of one process's metrics: plain float64 slots in memory that another process can read.

Who counts adds to slots of its own: about 0.1 us, no lock, no look-up of labels. Who is scraped reads
them, whichever process that is: a board in a file outlives the process that wrote it, and the next one
in its place goes on counting, so that counters never fall. One thread writes a slot.
Knows nothing about HTTP or how the numbers are told.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from telemetry.metric import Kind, Metric

_SLOT_BYTES = 8
_MODE = 0o600


class Slot:
    """One number."""

    __slots__ = ("_index", "_memory")

    def __init__(self, memory: "memoryview[float]", index: int) -> None:
        self._memory = memory
        self._index = index

    @property
    def value(self) -> float:
        """The number now."""
        return self._memory[self._index]

    def add(self, amount: float = 1.0) -> None:
        """Count."""
        self._memory[self._index] += amount

    def set(self, value: float) -> None:
        """Tell what a gauge stands at, or a counter that is counted elsewhere."""
        self._memory[self._index] = value


class Buckets:
    """One histogram."""

    __slots__ = ("_bounds", "_memory", "_start", "_sum")

    def __init__(self, memory: "memoryview[float]", start: int, bounds: tuple[float, ...]) -> None:
        self._memory = memory
        self._start = start
        self._bounds = bounds
        self._sum = start + len(bounds) + 1

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or as many equal ones."""
        memory = self._memory
        memory[self._start + bisect_left(self._bounds, value)] += times
        memory[self._sum] += value * times

    def counts(self) -> Sequence[float]:
        """Tell how many values each bucket took, the infinite one last."""
        return self._memory[self._start : self._sum].tolist()

    @property
    def sum(self) -> float:
        """All values together."""
        return self._memory[self._sum]


class Board:
    """The slots of some metrics, in the order of their definitions."""

    def __init__(self, metrics: Sequence[Metric], memory: "memoryview[float] | None" = None) -> None:
        """Lay ``metrics`` out in ``memory``, or in memory of this process alone."""
        self.metrics = tuple(metrics)
        self._starts: dict[str, int] = {}
        size = 0
        for metric in self.metrics:
            assert metric.name not in self._starts, f"{metric.name} is defined twice"
            self._starts[metric.name] = size
            size += metric.slots_per_series * len(metric.series)
        if memory is None:
            memory = memoryview(bytearray(size * _SLOT_BYTES)).cast("d")
        assert len(memory) == size, f"{len(memory)} slots, but the metrics need {size}"
        self._memory = memory
        self._metric_of = {metric.name: metric for metric in self.metrics}

    @classmethod
    def in_file(cls, metrics: Sequence[Metric], path: Path) -> "Board":
        """Share a board through a file, which whoever comes first makes.

        The file must stand in memory (as /dev/shm does): a write to one on a disk may wait for it.

        Raises:
            OSError: if there is no room for it: found only when counting, that would be SIGBUS.
        """
        size = _SLOT_BYTES * sum(metric.slots_per_series * len(metric.series) for metric in metrics)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            os.ftruncate(handle, size)
            os.posix_fallocate(handle, 0, size)
            return cls(metrics, memoryview(mmap.mmap(handle, size)).cast("d"))
        finally:
            os.close(handle)

    @classmethod
    def taken_over(cls, metrics: Sequence[Metric], path: Path) -> "Board":
        """Go on with the board of the process that was in this one's place, if there was one."""
        board = cls.in_file(metrics, path)
        board._clear_gauges()
        return board

    def slot(self, name: str, *label_values: str) -> Slot:
        """Find the number of one series of a counter or gauge."""
        return Slot(self._memory, self._start_of(name, label_values))

    def buckets(self, name: str, *label_values: str) -> Buckets:
        """Find one series of a histogram."""
        metric = self._metric_of[name]
        assert metric.kind is Kind.HISTOGRAM, f"{name} is no histogram"
        return Buckets(self._memory, self._start_of(name, label_values), metric.buckets)

    def _clear_gauges(self) -> None:
        for metric in self.metrics:
            if metric.kind is Kind.GAUGE:
                for values in metric.series:
                    self.slot(metric.name, *values).set(0.0)

    def _start_of(self, name: str, label_values: tuple[str, ...]) -> int:
        metric = self._metric_of[name]
        return self._starts[name] + metric.slots_per_series * metric.series.index(label_values)
