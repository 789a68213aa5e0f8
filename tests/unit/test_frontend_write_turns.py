"""Turns to write: few in one round of the event loop, after a rest of each stream's own."""

import asyncio
from collections.abc import Callable

import pytest

from scheduler_svc.frontend.write_turns import WriteTurns

LIMIT_SECONDS = 5.0
MANY_STREAMS = 33


async def rounds_until(condition: Callable[[], bool]) -> int:
    """Count the rounds of the event loop until ``condition`` holds."""
    for count in range(1000):
        if condition():
            return count
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def test_a_round_has_so_many_turns_and_all_get_one_in_order() -> None:
    turns, order = WriteTurns(lambda: MANY_STREAMS), list[int]()

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


def begin_burst(turns: WriteTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the burst last as long as the test."""
    monkeypatch.setattr("scheduler_svc.frontend.write_turns._BURST_SECONDS", 60.0)
    for _ in range(7):
        turns.note_new_stream()
    assert not turns.is_burst
    turns.note_new_stream()
    assert turns.is_burst


@pytest.mark.parametrize(("num_open", "is_burst"), [(32, False), (33, True)])
async def test_few_open_streams_are_no_burst_however_fast_they_come(
    num_open: int, is_burst: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_svc.frontend.write_turns._BURST_SECONDS", 60.0)
    turns = WriteTurns(lambda: num_open)
    for _ in range(num_open):
        turns.note_new_stream()
    assert turns.is_burst == is_burst


async def seconds_of_turns(turns: WriteTurns, num_turns: int) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.wait_for(asyncio.gather(*(turns.take() for _ in range(num_turns))), LIMIT_SECONDS)
    return loop.time() - start


async def test_in_a_burst_of_new_streams_rounds_with_turns_come_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = WriteTurns(lambda: MANY_STREAMS)
    begin_burst(turns, monkeypatch)
    # 8 turns at once, then three rounds of 16 turns, 16 ms apart.
    assert await seconds_of_turns(turns, 56) >= 0.045


async def test_in_a_burst_a_round_has_the_more_turns_the_more_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.frontend.write_turns._BURST_ROUND_SECONDS", 0.0)
    turns, order = WriteTurns(lambda: MANY_STREAMS), list[int]()
    begin_burst(turns, monkeypatch)

    async def write(index: int) -> None:
        await turns.take()
        order.append(index)

    tasks = [asyncio.create_task(write(index)) for index in range(8 + 320)]
    sizes: list[int] = []
    while len(order) < len(tasks):
        await asyncio.sleep(0)
        sizes.append(len(order) - sum(sizes))
    assert [size for size in sizes if size][:7] == [8, 20, 18, 17, 16, 16, 16]
    assert order == list(range(len(tasks)))
    await asyncio.gather(*tasks)


async def test_in_a_burst_new_streams_are_taken_in_together(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, order = WriteTurns(lambda: MANY_STREAMS), list[int]()
    with pytest.raises(StopIteration):  # without a burst it never gives way to another task
        WriteTurns(lambda: MANY_STREAMS).take_in().send(None)
    begin_burst(turns, monkeypatch)

    async def take_in(index: int) -> None:
        await turns.take_in()
        order.append(index)

    tasks = [asyncio.create_task(take_in(index)) for index in range(100)]
    await asyncio.sleep(0)
    tasks[7].cancel()
    await rounds_until(tasks[7].done)
    assert not order
    await asyncio.wait_for(tasks[0], LIMIT_SECONDS)
    await asyncio.sleep(0)
    assert order == [index for index in range(100) if index != 7]
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_in_a_burst_many_new_streams_do_not_wait_for_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.frontend.write_turns._BURST_ROUND_SECONDS", 60.0)
    turns, taken_in = WriteTurns(lambda: MANY_STREAMS), list[int]()
    begin_burst(turns, monkeypatch)

    async def take_in(index: int) -> None:
        await turns.take_in()
        taken_in.append(index)

    tasks = [asyncio.create_task(take_in(index)) for index in range(15)]
    with pytest.raises(AssertionError):
        await rounds_until(lambda: bool(taken_in))
    tasks += [asyncio.create_task(take_in(index)) for index in range(15, 31)]
    await rounds_until(lambda: len(taken_in) == 31)
    assert taken_in == list(range(31))
    await asyncio.gather(*tasks)


async def test_one_turn_after_another_needs_no_waiting() -> None:
    turns = WriteTurns(lambda: MANY_STREAMS)
    for _ in range(8):
        turn = turns.take()
        with pytest.raises(StopIteration):  # it never gave way to another task
            turn.send(None)


async def test_rests_end_by_their_own_time_and_not_before() -> None:
    turns, order = WriteTurns(lambda: MANY_STREAMS), list[str]()
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
    turns, order = WriteTurns(lambda: MANY_STREAMS), list[int]()

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
    turns = WriteTurns(lambda: MANY_STREAMS)
    long, short = turns.rest(3600.0), turns.rest(0.02)
    turns.end_rest(long)
    turns.end_rest(short)
    await asyncio.wait_for(asyncio.gather(long, short), LIMIT_SECONDS)
    await asyncio.wait_for(turns.rest(0.03), LIMIT_SECONDS)  # until after the short one was due
