"""How far the requests of one fault run have got: the clock that faults and late requests go by.

Counts tokens instead of seconds, so that a run's plan means the same on any machine. Knows nothing about
channels or faults. For one event loop.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Tokens told so far, over all requests of a run."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._num_moving = 0
        self._has_begun = False
        self._waiters: list[tuple[int, asyncio.Event]] = []

    def note(self, num_tokens: int) -> None:
        """Count tokens that were told."""
        self.num_tokens += num_tokens
        for waiter in [one for one in self._waiters if one[0] <= self.num_tokens]:
            self._release(waiter)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Be one of those who bring tokens."""
        self._has_begun = True
        self._num_moving += 1
        try:
            yield
        finally:
            self._stop_one()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Bring none for a while, inside ``moving``."""
        self._stop_one()
        try:
            yield
        finally:
            self._num_moving += 1

    async def reach(self, num_tokens: int) -> None:
        """Wait until so many tokens were told, or nobody is left to bring them."""
        if num_tokens <= self.num_tokens or (self._has_begun and not self._num_moving):
            return
        waiter = (num_tokens, asyncio.Event())
        self._waiters.append(waiter)
        await waiter[1].wait()

    def _stop_one(self) -> None:
        """Where nobody brings tokens any more, all that wait for some go on."""
        self._num_moving -= 1
        if not self._num_moving:
            for waiter in list(self._waiters):
                self._release(waiter)

    def _release(self, waiter: tuple[int, asyncio.Event]) -> None:
        self._waiters.remove(waiter)
        waiter[1].set()
