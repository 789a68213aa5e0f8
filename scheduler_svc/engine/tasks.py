"""Run coroutines side by side until the first of them ends.

Knows nothing about what they do.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until_first(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run ``coroutines`` until one returns or raises, cancel the others, and raise what it raised.

    When several raise, the earliest in the order of the arguments is raised.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
