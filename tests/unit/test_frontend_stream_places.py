"""The open requests of one stream: waiting until one more may be, and until none is."""

import asyncio
from collections.abc import Coroutine

import pytest

from scheduler_svc.frontend.stream_places import StreamPlaces

LIMIT_SECONDS = 10.0


async def waiting(wait: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Start a wait that is not over at once."""
    task = asyncio.create_task(wait)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_one_more_waits_until_one_is_given_back() -> None:
    places = StreamPlaces(2)
    for _ in range(2):
        await asyncio.wait_for(places.wait_room(), LIMIT_SECONDS)
        places.take()
    room = await waiting(places.wait_room())
    places.give_back()
    await asyncio.wait_for(room, LIMIT_SECONDS)
    places.take()
    (await waiting(places.wait_room())).cancel()
    with pytest.raises(AssertionError, match="wait_room tells"):
        places.take()


async def test_it_is_empty_once_all_are_given_back() -> None:
    places = StreamPlaces(2)
    await asyncio.wait_for(places.wait_empty(), LIMIT_SECONDS)
    places.take()
    places.take()
    empty = await waiting(places.wait_empty())
    places.give_back()
    await asyncio.sleep(0)
    assert not empty.done()
    places.give_back()
    await asyncio.wait_for(empty, LIMIT_SECONDS)
