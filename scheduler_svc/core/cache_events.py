"""What the prefix cache gains and loses, written down while somebody wants to know; pure.

Who applies all events in order from an empty set on knows which hashes the cache can serve. Knows
nothing about blocks' ids, nor about who wants to know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduler_svc.core.types import BlockHash, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlocksStored:
    """Blocks in a row of one request can be found from now on."""

    parent_hash: BlockHash | None
    """Of the block before them; None where they begin the request."""
    block_hashes: tuple[BlockHash, ...]
    token_ids: Int32Array
    """Of all of them, as many for each."""
    cache_salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """Blocks cannot be found any more."""

    block_hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing can be found any more."""


CacheEvent = BlocksStored | BlocksRemoved | CacheCleared


class CacheJournal:
    """The events since they were last taken; off, it costs a look at ``is_kept``."""

    def __init__(self) -> None:
        self.is_kept = False
        """Whether anybody wants to know; to be changed by ``keep`` only."""
        self._events: list[CacheEvent] = []

    def keep(self, *, is_kept: bool) -> None:
        """Begin or cease to write down; what was not taken is forgotten."""
        self.is_kept = is_kept
        self._events = []

    def note(self, event: CacheEvent) -> None:
        """Write an event down; the caller has looked at ``is_kept``."""
        self._events.append(event)

    def take(self) -> tuple[CacheEvent, ...]:
        """Take out all events, oldest first."""
        events, self._events = self._events, []
        return tuple(events)


def runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split rising numbers into runs without a gap: the first of each, and the one past its last."""
    start = 0
    for place in range(1, len(indices) + 1):
        if place == len(indices) or indices[place] != indices[place - 1] + 1:
            yield indices[start], indices[place - 1] + 1
            start = place
