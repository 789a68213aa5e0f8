"""Whether some worker group serves, for those who wait until that has changed for good.

Knows nothing about health names or requests.
"""

import asyncio


class Readiness:
    """What the engine told last."""

    def __init__(self) -> None:
        """Begin without a worker."""
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost.set()

    def note(self, *, is_ready: bool) -> None:
        """Take note of what is now."""
        now, before = (self._ready, self._lost) if is_ready else (self._lost, self._ready)
        before.clear()
        now.set()

    async def lost_for(self, seconds: float) -> None:
        """Wait until no group has served for so long."""
        while True:
            await self._lost.wait()
            try:
                await asyncio.wait_for(self._ready.wait(), seconds)
            except TimeoutError:
                return
