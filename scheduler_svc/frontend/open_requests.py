"""The requests that a front end has open: how many, whether more are taken, which were aborted early.

Knows nothing about what a request does. Not thread-safe: for one event loop.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scheduler_svc.errors import DrainingError


class OpenRequest:
    """One open request."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_aborted_early = False
        """An Abort came while the prompt was read, before the engine knew the request."""


class OpenRequests:
    """All open requests of one front end."""

    def __init__(self) -> None:
        self._open: set[OpenRequest] = set()
        self._draining = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._many = 0
        self._on_many: Callable[[], None] | None = None

    def call_once_many(self, many: int, on_many: Callable[[], None]) -> None:
        """Have ``on_many`` called once, when more than ``many`` requests are open for the first time."""
        self._many, self._on_many = many, on_many

    def __len__(self) -> int:
        """Tell how many requests are open."""
        return len(self._open)

    @contextmanager
    def enter(self, request_id: str) -> Iterator[OpenRequest]:
        """Hold a request open inside the ``with`` block.

        Raises:
            DrainingError: if no new requests are taken.
        """
        if self._draining.is_set():
            raise DrainingError("the server is stopping and takes no new requests")
        entry = OpenRequest(request_id)
        self._open.add(entry)
        self._idle.clear()
        if self._on_many is not None and len(self._open) > self._many:
            on_many, self._on_many = self._on_many, None
            on_many()
        try:
            yield entry
        finally:
            self._open.discard(entry)
            if not self._open:
                self._idle.set()

    def abort_early(self, request_id: str) -> None:
        """Mark the open requests of this id; those that the engine knows already do not look."""
        for entry in self._open:
            if entry.request_id == request_id:
                entry.is_aborted_early = True

    def refuse_new(self) -> None:
        """Take no new requests from now on."""
        self._draining.set()

    async def wait_draining(self) -> None:
        """Wait until no new requests are taken."""
        await self._draining.wait()

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until none is open; return whether that came within the time."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True
