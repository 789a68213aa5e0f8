"""The requests of one stream that are open, from their acceptance until their end is written.

Knows nothing about what a request does. Not thread-safe: for one event loop, and one task that takes places.
"""

import asyncio


class StreamPlaces:
    """At most so many open requests."""

    def __init__(self, max_open: int) -> None:
        """Begin with none open; at most ``max_open`` are."""
        self._max_open = max_open
        self._num_open = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def wait_room(self) -> None:
        """Wait until one more may be open."""
        await self._has_room.wait()

    async def wait_empty(self) -> None:
        """Wait until none is open."""
        await self._is_empty.wait()

    def take(self) -> None:
        """Count one more; there must be room."""
        assert self._num_open < self._max_open, "wait_room tells when there is room"
        self._num_open += 1
        self._is_empty.clear()
        if self._num_open == self._max_open:
            self._has_room.clear()

    def give_back(self) -> None:
        """Count one fewer."""
        self._num_open -= 1
        self._has_room.set()
        if not self._num_open:
            self._is_empty.set()
