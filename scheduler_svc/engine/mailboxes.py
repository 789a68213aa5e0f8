"""The queues at the loop's two ends: one inbox of events, one bounded outbox a front end.

Putting never waits. Knows nothing about what events and outputs mean.
"""

import asyncio
from typing import Generic, TypeVar

from scheduler_svc.engine.values import Event

Message = TypeVar("Message")


class Inbox:
    """Events for the loop, in order of arrival."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wakeup = asyncio.Event()

    def post(self, event: Event) -> None:
        """Add an event and wake the loop."""
        self._events.append(event)
        self._wakeup.set()

    def wake(self) -> None:
        """Wake the loop without an event."""
        self._wakeup.set()

    async def drain(self) -> list[Event]:
        """Wait to be woken, then take all events."""
        await self._wakeup.wait()
        self._wakeup.clear()
        events, self._events = self._events, []
        return events


class Outbox(Generic[Message]):
    """What one front end has still to be told; it is cut off when it lets too much gather."""

    def __init__(self, max_messages: int) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue(max_messages)
        self._overflowed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a message; past the bound the front end is cut off instead."""
        if self._messages.full():
            self._overflowed.set()
        else:
            self._messages.put_nowait(message)

    async def get(self) -> Message:
        """Wait for the next message."""
        return await self._messages.get()

    @property
    def has_overflowed(self) -> bool:
        """Whether the front end must be cut off: it missed a message."""
        return self._overflowed.is_set()

    async def overflowed(self) -> None:
        """Wait until the front end must be cut off."""
        await self._overflowed.wait()
