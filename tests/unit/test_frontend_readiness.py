"""Whether workers serve, and waiting until none has for a while."""

import asyncio

import pytest

from scheduler_svc.frontend.readiness import Readiness

LIMIT_SECONDS = 10.0


async def test_without_a_worker_from_the_start_the_time_counts_at_once() -> None:
    await asyncio.wait_for(Readiness().lost_for(0.01), LIMIT_SECONDS)


async def test_a_worker_that_comes_back_in_time_begins_the_wait_anew() -> None:
    readiness = Readiness()
    readiness.note(is_ready=True)
    waiting = asyncio.create_task(readiness.lost_for(3600.0))
    for is_ready in (False, True, False, True):
        readiness.note(is_ready=is_ready)
        for _ in range(5):
            await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    short = asyncio.create_task(readiness.lost_for(0.01))
    await asyncio.sleep(0.05)
    assert not short.done()  # a worker serves
    readiness.note(is_ready=False)
    await asyncio.wait_for(short, LIMIT_SECONDS)
