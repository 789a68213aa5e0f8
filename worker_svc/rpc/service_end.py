"""Waits for what ends a worker: a signal, a device that is lost, or a step that does not end.

Knows nothing about gRPC, models or steps.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from worker_svc.errors import DeviceLostError

_LOOK_SECONDS = 0.2


class ServiceEnd:
    """What a worker that serves waits for."""

    def __init__(self, stop: asyncio.Event) -> None:
        """Make it inside the event loop; ``stop`` is the ordinary end."""
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()

    def lose_device(self, error: DeviceLostError) -> None:
        """Note that the device is lost. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._lose, error)

    def _lose(self, error: DeviceLostError) -> None:
        if not self._lost.done():
            self._lost.set_exception(error)

    async def wait(self, stuck_seconds: Callable[[], float], *, limit_seconds: float) -> None:
        """Wait for the ordinary end.

        Args:
            stuck_seconds: tells how long a step has run that nobody waits for any more.
            limit_seconds: how long one may.

        Raises:
            DeviceLostError: if the device is lost, or a step runs past the limit.
        """
        waits: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(self._stop.wait()),
            asyncio.ensure_future(self._watch(stuck_seconds, limit_seconds)),
            self._lost,
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in waits:
                one.cancel()

    async def _watch(self, stuck_seconds: Callable[[], float], limit_seconds: float) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if stuck_seconds() > limit_seconds:
                raise DeviceLostError(
                    f"a step still runs {limit_seconds:g} s after its engine gave it up: the device hangs"
                )
