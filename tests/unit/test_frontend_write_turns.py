"""Turns to write: few in one round of the event loop, after a rest of each stream's own."""

import asyncio
from collections.abc import Callable

import pytest

from scheduler_svc.frontend.write_turns import WriteTurns

LIMIT_SECONDS = 5.0


async def rounds_until(condition: Callable[[], bool]) -> int:
    """Count the rounds of the event loop until ``condition`` holds."""
    for count in range(1000):
        if condition():
            return count
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def test_a_round_has_so_many_turns_and_all_get_one_in_order() -> None:
    turns, order = WriteTurns(), list[int]()

    async def write(index: int) -> None:
        await turns.take()
        order.append(index)

    tasks = [asyncio.create_task(write(index)) for index in range(40)]
    sizes: list[int] = []
    while len(order) < 40:
        await asyncio.sleep(0)
        sizes.append(len(order) - sum(sizes))
    assert [size for size in sizes if size] == [8, 8, 8, 8, 8]
    assert order == list(range(40))
    await asyncio.gather(*tasks)


async def test_in_a_burst_of_new_streams_rounds_with_turns_come_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_svc.frontend.write_turns._BURST_SECONDS", 60.0)
    turns, loop = WriteTurns(), asyncio.get_running_loop()
    loop_rounds = 0

    async def count_rounds() -> None:
        nonlocal loop_rounds
        while True:
            await asyncio.sleep(0)
            loop_rounds += 1

    async def rounds_of_the_loop_for_32_turns() -> int:
        before = loop_rounds
        await asyncio.wait_for(asyncio.gather(*(turns.take() for _ in range(32))), LIMIT_SECONDS)
        return loop_rounds - before

    counter = loop.create_task(count_rounds())
    for _ in range(7):
        turns.note_new_stream()
    assert await rounds_of_the_loop_for_32_turns() < 12
    turns.note_new_stream()
    start = loop.time()
    await rounds_of_the_loop_for_32_turns()
    assert loop.time() - start >= 0.009  # three rounds of 4 ms after the first
    counter.cancel()


async def test_one_turn_after_another_needs_no_waiting() -> None:
    turns = WriteTurns()
    for _ in range(8):
        turn = turns.take()
        with pytest.raises(StopIteration):  # it never gave way to another task
            turn.send(None)


async def test_rests_end_by_their_own_time_and_not_before() -> None:
    turns, order = WriteTurns(), list[str]()
    start = asyncio.get_running_loop().time()

    async def write(name: str, seconds: float) -> None:
        await turns.rest(seconds)
        assert asyncio.get_running_loop().time() - start >= seconds - 0.002
        order.append(name)

    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(write("long", 0.04))
        await asyncio.sleep(0)  # the first timer is set for it
        group.create_task(write("short", 0.01))
        group.create_task(write("middle", 0.02))
    assert order == ["short", "middle", "long"]


async def test_a_stream_that_goes_takes_no_turn() -> None:
    turns, order = WriteTurns(), list[int]()

    async def write(index: int) -> None:
        await turns.take()
        order.append(index)

    tasks = [asyncio.create_task(write(index)) for index in range(17)]
    await rounds_until(lambda: len(order) == 8)
    tasks[8].cancel()
    await rounds_until(lambda: len(order) > 8)
    assert order == [index for index in range(17) if index != 8]
    resting = turns.rest(0.001)
    resting.cancel()
    await asyncio.wait_for(turns.rest(0.003), LIMIT_SECONDS)
    await asyncio.gather(*tasks, resting, return_exceptions=True)


async def test_a_rest_may_be_ended_before_its_time_and_is_over_then() -> None:
    turns = WriteTurns()
    long, short = turns.rest(3600.0), turns.rest(0.02)
    turns.end_rest(long)
    turns.end_rest(short)
    await asyncio.wait_for(asyncio.gather(long, short), LIMIT_SECONDS)
    await asyncio.wait_for(turns.rest(0.03), LIMIT_SECONDS)  # until after the short one was due
