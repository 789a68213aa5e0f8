"""What a metric is: its name, unit and labels, all of them known before anything is counted.

Names keep to Prometheus' conventions, which is checked when a metric is made. Knows nothing about where
the numbers stand (board.py) or how they are told (exposition.py).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_NAME = re.compile(r"stepwire_[a-z][a-z0-9]*(_[a-z0-9]+)*")
_ODD_UNITS = re.compile(r"_(ms|milliseconds|us|ns|nanoseconds|minutes|kb|mb|gib|mib|percent|perc)(_total)?$")
_KEPT_SUFFIXES = ("_total", "_count", "_sum", "_bucket", "_info", "_created")
"""Each means something to Prometheus; only a counter's own name ends with the first of them."""


class Kind(Enum):
    """How a metric's numbers behave."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of one process, with all of its series."""

    name: str
    kind: Kind
    help: str
    """One sentence, as people read it."""
    labels: tuple[str, ...] = ()
    series: tuple[tuple[str, ...], ...] = ((),)
    """The label values of each series."""
    buckets: tuple[float, ...] = ()
    """Of a histogram: upper bounds, rising, without the infinite one."""

    def __post_init__(self) -> None:
        """Refuse what Prometheus' conventions do not allow."""
        assert _NAME.fullmatch(self.name), f"{self.name}: not a name of ours"
        assert not _ODD_UNITS.search(self.name), f"{self.name}: base units only"
        is_counter = self.kind is Kind.COUNTER
        assert self.name.endswith("_total") is is_counter, f"{self.name}: _total is for counters"
        assert is_counter or not self.name.endswith(_KEPT_SUFFIXES), f"{self.name}: a kept suffix"
        assert all(len(values) == len(self.labels) for values in self.series), f"{self.name}: labels"
        assert bool(self.buckets) is (self.kind is Kind.HISTOGRAM), f"{self.name}: buckets"
        assert list(self.buckets) == sorted(set(self.buckets)), f"{self.name}: buckets rise"

    @property
    def slots_per_series(self) -> int:
        """How many numbers a series has: of a histogram, its buckets, the infinite one and the sum."""
        return len(self.buckets) + 2 if self.kind is Kind.HISTOGRAM else 1


def counter(name: str, what: str, *, label: str = "", values: Sequence[str] = ()) -> Metric:
    """Define what only grows; with a label, a series for each of its values."""
    labels, series = _one_label(label, values)
    return Metric(name=name, kind=Kind.COUNTER, help=what, labels=labels, series=series)


def gauge(name: str, what: str, *, label: str = "", values: Sequence[str] = ()) -> Metric:
    """Define what rises and falls; with a label, a series for each of its values."""
    labels, series = _one_label(label, values)
    return Metric(name=name, kind=Kind.GAUGE, help=what, labels=labels, series=series)


def histogram(
    name: str, what: str, *, buckets: tuple[float, ...], label: str = "", values: Sequence[str] = ()
) -> Metric:
    """Define what is spread over buckets; with a label, a series for each of its values."""
    labels, series = _one_label(label, values)
    return Metric(name=name, kind=Kind.HISTOGRAM, help=what, labels=labels, series=series, buckets=buckets)


def _one_label(label: str, values: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    return ((label,), tuple((value,) for value in values)) if label else ((), ((),))
