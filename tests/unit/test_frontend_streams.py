"""Buffers of requests: merging, bounds, ends, and the delay between writes."""

import asyncio

import pytest

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import DeadlineError, DrainingError, SlowConsumerError
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.open_requests import OpenRequests
from scheduler_svc.frontend.stop_strings import StopStringMatcher
from scheduler_svc.frontend.streams import RequestStream, Verdict, deliver
from scheduler_svc.frontend.values import Delta, Ended, Final, Output, RequestStatus, TokenLogprobs
from scheduler_svc.frontend.write_turns import WriteTurns


class LetterDetokenizer:
    """Token i is the letter chr(i)."""

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def push_all(self, token_ids: list[int]) -> str:
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        return ""


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


def make(*stop_strings: str, max_pending: int = 100, clock: Clock | None = None) -> RequestStream:
    matcher = StopStringMatcher(stop_strings) if stop_strings else None
    return RequestStream(
        Generation(LetterDetokenizer(), matcher),
        num_prompt_tokens=3,
        arrival_ns=1000,
        max_pending=max_pending,
        clock_ns=clock or Clock(),
        meter=FrontendMeter.on_board().tokens,
    )


def push(stream: RequestStream, text: str) -> list[Verdict | None]:
    return [stream.push(ord(letter)) for letter in text]


def delta(text: str) -> Delta:
    return Delta(text=text, token_ids=[ord(letter) for letter in text], logprobs=[])


async def test_all_that_gathered_is_one_delta_then_the_end() -> None:
    clock = Clock()
    stream = make(clock=clock)
    stream.started(num_cached_tokens=2, queue_time_ns=40)
    clock.now_ns = 1100
    push(stream, "a")
    assert stream.take() == delta("a")
    clock.now_ns = 1200
    push(stream, "bcd")
    assert stream.take() == delta("bcd")
    clock.now_ns = 1500
    stream.ended(
        Ended(reason=FinishReason.STOP_TOKEN, matched_stop_token_id=9, num_cached_tokens=2, queue_time_ns=40)
    )
    want = Final(
        reason=FinishReason.STOP_TOKEN,
        matched_stop_token_id=9,
        num_prompt_tokens=3,
        num_output_tokens=4,
        num_cached_tokens=2,
        queue_time_ns=40,
        first_token_time_ns=100,
        total_time_ns=500,
    )
    assert stream.take() == want
    assert stream.take() == want


async def test_a_waiting_reader_wakes() -> None:
    stream = make()
    reader = asyncio.create_task(stream.wait())
    await asyncio.sleep(0)
    assert not reader.done()
    push(stream, "a")
    await asyncio.wait_for(reader, 5)
    assert stream.take() == delta("a")
    assert not stream.has_output


async def test_a_reader_that_was_cancelled_harms_nobody() -> None:
    stream = make()
    reader = asyncio.create_task(stream.wait())
    await asyncio.sleep(0)
    reader.cancel()
    push(stream, "a")
    await asyncio.gather(reader, return_exceptions=True)
    assert stream.take() == delta("a")


async def test_a_stop_string_ends_the_request_here_with_what_the_engine_told_at_its_start() -> None:
    stream = make("bc")
    stream.started(num_cached_tokens=2, queue_time_ns=40)
    assert push(stream, "ab") == [None, None]
    assert stream.push(ord("c")) == Verdict(reason=FinishReason.STOP_STRING, num_output_tokens=3)
    assert stream.take() == Delta(text="a", token_ids=[97, 98, 99], logprobs=[])
    final = stream.take()
    assert isinstance(final, Final)
    assert (final.reason, final.matched_stop_string) == (FinishReason.STOP_STRING, "bc")
    assert (final.num_output_tokens, final.num_cached_tokens, final.queue_time_ns) == (3, 2, 40)


async def test_held_text_is_told_at_the_end() -> None:
    stream = make("bc")
    push(stream, "ab")
    stream.ended(Ended(reason=FinishReason.LENGTH))
    assert stream.take() == Delta(text="ab", token_ids=[97, 98], logprobs=[])
    final = stream.take()
    assert isinstance(final, Final)
    assert final.reason == FinishReason.LENGTH
    assert final.matched_stop_string is None


async def test_past_its_bound_the_request_ends_and_holds_nothing() -> None:
    stream = make(max_pending=3)
    assert push(stream, "abc") == [None, None, None]
    assert stream.push(ord("d")) == Verdict(reason=FinishReason.SLOW_CONSUMER)
    with pytest.raises(SlowConsumerError, match="does not read: 4 tokens wait, but at most 3 may"):
        stream.take()


async def test_log_probabilities_count_towards_the_bound() -> None:
    stream = make(max_pending=3)
    logprobs = TokenLogprobs(token_ids=(1, 2, 3), values=(-1.0, -2.0, -3.0))
    assert stream.push(97, logprobs) == Verdict(reason=FinishReason.SLOW_CONSUMER)


async def test_reading_makes_room() -> None:
    stream = make(max_pending=3)
    for _ in range(10):
        assert push(stream, "abc") == [None, None, None]
        assert stream.take() == delta("abc")


async def test_an_error_comes_after_the_output_before_it() -> None:
    stream = make()
    push(stream, "ab")
    stream.failed(DeadlineError("late"))
    assert stream.take() == delta("ab")
    with pytest.raises(DeadlineError, match="late"):
        stream.take()


async def test_the_first_output_is_written_at_once_and_later_ones_gather() -> None:
    stream = make()
    written: asyncio.Queue[Output] = asyncio.Queue()
    task = asyncio.create_task(
        deliver(stream, written.put, turns=WriteTurns(lambda: 1), delay_seconds=lambda: 0.05)
    )
    push(stream, "a")
    assert await asyncio.wait_for(written.get(), 0.04) == delta("a")
    for letter in "bcd":  # all within the delay, each seen by the loop
        push(stream, letter)
        await asyncio.sleep(0)
    assert written.empty()
    assert await asyncio.wait_for(written.get(), 5) == delta("bcd")
    stream.ended(Ended(reason=FinishReason.LENGTH))
    assert (await asyncio.wait_for(task, 5)).num_output_tokens == 4


async def test_an_ended_stream_does_not_wait_before_its_final_message() -> None:
    stream = make()
    push(stream, "a")
    stream.ended(Ended(reason=FinishReason.LENGTH))
    written: asyncio.Queue[Output] = asyncio.Queue()
    final = await asyncio.wait_for(
        deliver(stream, written.put, turns=WriteTurns(lambda: 1), delay_seconds=lambda: 3600.0), 5
    )
    assert [written.get_nowait(), written.get_nowait()] == [delta("a"), final]


@pytest.mark.parametrize("is_error", [False, True])
async def test_an_end_does_not_wait_for_the_rest_of_a_delay(is_error: bool) -> None:
    stream = make()
    written: asyncio.Queue[Output] = asyncio.Queue()
    task = asyncio.create_task(
        deliver(stream, written.put, turns=WriteTurns(lambda: 1), delay_seconds=lambda: 3600.0)
    )
    push(stream, "a")
    assert await asyncio.wait_for(written.get(), 5) == delta("a")
    push(stream, "bc")
    await asyncio.sleep(0)
    assert written.empty()
    if is_error:
        stream.failed(DeadlineError("late"))
        with pytest.raises(DeadlineError, match="late"):
            await asyncio.wait_for(task, 5)
    else:
        stream.ended(Ended(reason=FinishReason.LENGTH))
        assert (await asyncio.wait_for(task, 5)).num_output_tokens == 3
    assert written.get_nowait() == delta("bc")


async def test_open_requests_count_drain_and_mark_early_aborts() -> None:
    open_requests = OpenRequests()
    assert await open_requests.wait_idle(0.01) is True
    with open_requests.enter("a") as first, open_requests.enter("b") as second:
        assert len(open_requests) == 2
        open_requests.abort_early("a")
        open_requests.abort_early("unknown")
        assert (first.is_aborted_early, second.is_aborted_early) == (True, False)
        open_requests.refuse_new()
        with pytest.raises(DrainingError), open_requests.enter("c"):
            pass
        assert await open_requests.wait_idle(0.01) is False
    assert len(open_requests) == 0
    assert await open_requests.wait_idle(0.01) is True


async def test_a_status_comes_after_the_output_that_waits_and_only_the_last_one_is_told() -> None:
    stream = make()
    push(stream, "ab")
    stream.told_status(RequestStatus.WAITING_FOR_WORKER)
    assert [stream.take(), stream.take()] == [delta("ab"), RequestStatus.WAITING_FOR_WORKER]
    stream.told_status(RequestStatus.WAITING_FOR_WORKER)
    stream.told_status(RequestStatus.RUNNING)
    stream.failed(DeadlineError("late"))
    assert stream.take() is RequestStatus.RUNNING
    with pytest.raises(DeadlineError):
        stream.take()
