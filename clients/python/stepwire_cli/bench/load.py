"""How requests are offered: all at once, so many at a time, or at random times at a rate.

Pure: knows nothing about clocks, processes or channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One way to offer requests; neither field given offers all at once."""

    concurrency: int | None = None
    """So many are open at a time: one that ends lets the next one start."""
    rate_per_second: float | None = None
    """Requests arrive at random (a Poisson process), however many are open."""

    @property
    def label(self) -> str:
        """Say it in a few words."""
        if self.rate_per_second is not None:
            return f"{self.rate_per_second:g} requests/s"
        return "all at once" if self.concurrency is None else f"{self.concurrency} at a time"


def poisson_arrivals(num_requests: int, rate_per_second: float, *, seed: int) -> list[float]:
    """Return when each request arrives, in seconds from the start, by gaps of exponential length."""
    random, arrivals, now = Random(seed), [], 0.0
    for _ in range(num_requests):
        now += random.expovariate(rate_per_second)
        arrivals.append(now)
    return arrivals


def split_concurrency(concurrency: int, num_processes: int) -> list[int]:
    """Return each process's share of the open requests; the first ones take what is left over."""
    share, rest = divmod(concurrency, num_processes)
    return [share + (index < rest) for index in range(num_processes)]


def split_items(items: Sequence[Item], num_processes: int, *, concurrency: int) -> list[list[Item]]:
    """Deal items out to the processes in turn; one that may open none gets none."""
    num_used = min(num_processes, concurrency)
    shares = [list(items[index::num_used]) for index in range(num_used)]
    return shares + [[] for _ in range(num_processes - num_used)]
