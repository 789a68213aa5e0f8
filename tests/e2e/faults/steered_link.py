"""A link proxy in a thread of this process, for tests that do not run in its event loop.

Knows nothing about who is linked.
"""

import asyncio
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from tools.link_proxy import LinkProxy

LIMIT_SECONDS = 10.0
P = ParamSpec("P")
T = TypeVar("T")


class SteeredLink:
    """A link to ``target``; use it in a ``with`` block."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="link", daemon=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._proxy.address

    def steer(self, act: Callable[Concatenate[LinkProxy, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the proxy in its event loop: ``link.steer(LinkProxy.cut)``."""

        async def call() -> T:
            return act(self._proxy, *args, **kwargs)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(LIMIT_SECONDS)

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(LIMIT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Break what is open and end the thread."""
        asyncio.run_coroutine_threadsafe(self._proxy.stop(), self._loop).result(LIMIT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_SECONDS)
        self._loop.close()

    async def _start(self) -> None:
        self._proxy = LinkProxy(self._target)
        await self._proxy.start()
