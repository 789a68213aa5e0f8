"""The judge of fault runs finds what it must: a token too few or too many, a second end, a wrong status."""

import asyncio
from dataclasses import replace

import pytest
from stepwire_client import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    FinalOutput,
    FinishReason,
    Internal,
    Timings,
    Unavailable,
    Usage,
)

from tests.e2e.faults.cases import Event, Expected, expected_of
from tests.e2e.faults.fault_plan import FaultKind, draw_plan
from tests.e2e.faults.progress import Progress
from tests.e2e.faults.verdicts import Manner, Told, Verdict, is_refusal, judge

NO_TIMINGS = Timings(queue_seconds=None, first_token_seconds=None, total_seconds=None)
FINAL = FinalOutput(
    finish_reason=FinishReason.LENGTH,
    matched_stop=None,
    usage=Usage(num_prompt_tokens=2, num_output_tokens=3, num_cached_tokens=0),
    timings=NO_TIMINGS,
)
ABORTED = replace(FINAL, finish_reason=FinishReason.ABORT)
FIRST, SECOND = Delta(text="ab", token_ids=(1, 2)), Delta(text="c", token_ids=(3,))
EXPECTED = Expected(
    token_ids=(1, 2, 3),
    text="abc",
    finish_reason=FinishReason.LENGTH,
    matched_stop=None,
    num_prompt_tokens=2,
    num_output_tokens=3,
)
GIVEN_UP = Internal("3 workers were lost while they ran this request")


def judged(manner: Manner, *events: Event, num_epochs_lost: int = 0) -> tuple[Verdict, list[str]]:
    return judge(Told(manner=manner, case=0, events=list(events)), EXPECTED, num_epochs_lost=num_epochs_lost)


def test_expected_output_is_read_off_events() -> None:
    assert expected_of([FIRST, SECOND, FINAL]) == EXPECTED


@pytest.mark.parametrize("manner", list(Manner))
def test_all_that_was_to_come_is_complete(manner: Manner) -> None:
    assert judged(manner, FIRST, SECOND, FINAL) == (Verdict.COMPLETE, [])


@pytest.mark.parametrize(
    ("manner", "events"),
    [
        (Manner.CANCEL, [FIRST]),
        (Manner.CANCEL, [FIRST, Cancelled("cancelled here")]),
        (Manner.VANISH, []),
        (Manner.ABORT, [FIRST, ABORTED]),
        (Manner.ABORT, [replace(FIRST, text="a\N{REPLACEMENT CHARACTER}"), ABORTED]),
        (Manner.DEADLINE, [FIRST, DeadlineExceeded("it passed")]),
        (Manner.DEADLINE, [DeadlineExceeded("it passed")]),
    ],
)
def test_who_asks_for_an_early_end_gets_one(manner: Manner, events: list[Event]) -> None:
    assert judged(manner, *events) == (Verdict.PARTIAL, [])


@pytest.mark.parametrize(
    ("manner", "events", "problem"),
    [
        (Manner.STREAM, [FIRST, FINAL], "tokens: 2, expected 3"),
        (Manner.STREAM, [SECOND, FINAL], "token 0 of 1 is wrong: (3,), expected (1, 2, 3)"),
        (Manner.STREAM, [FIRST, SECOND, SECOND, FINAL], "token 3 of 4 is wrong: (3,), expected ()"),
        (Manner.STREAM, [FIRST, replace(SECOND, text="d"), FINAL], "text at 2 of 3: 'd', expected 'c'"),
        (Manner.STREAM, [FIRST, replace(SECOND, text=""), FINAL], "characters: 2, expected 3"),
        (Manner.RAW, [FIRST, SECOND, FINAL, FINAL], "it ended 2 times"),
        (Manner.RAW, [FIRST, FINAL, SECOND], "more was told after the end"),
        (Manner.BULK, [FIRST, SECOND], "it did not end"),
        (Manner.CANCEL, [SECOND], "token 0 of 1 is wrong: (3,), expected (1, 2, 3)"),
        (Manner.ABORT, [replace(FIRST, text="ax"), ABORTED], "text at 1 of 2: 'x', expected 'bc'"),
        (Manner.STREAM, [FIRST, ABORTED], f"it ended after 2 tokens with {ABORTED!r}"),
        (Manner.STREAM, [FIRST, GIVEN_UP], f"it ended after 2 tokens with {GIVEN_UP!r}"),
        (Manner.DEADLINE, [Internal("a fault")], "it ended after 0 tokens with Internal('a fault')"),
        (
            Manner.STREAM,
            [FIRST, SECOND, replace(FINAL, finish_reason=FinishReason.STOP)],
            "finish_reason: <FinishReason.STOP: 'stop'>, expected <FinishReason.LENGTH: 'length'>",
        ),
    ],
)
def test_all_else_is_lost(manner: Manner, events: list[Event], problem: str) -> None:
    verdict, problems = judged(manner, *events, num_epochs_lost=2)
    assert (verdict, problems[0]) == (Verdict.LOST, problem)


@pytest.mark.parametrize(
    ("text", "end", "problem"),
    [
        ("c", ABORTED, None),
        ("cst", ABORTED, None),
        ("cs\N{REPLACEMENT CHARACTER}", ABORTED, None),
        ("cstop", ABORTED, "text at 6 of 7: 'p', expected ''"),
        ("cx", ABORTED, "text at 3 of 4: 'x', expected 'sto'"),
        ("cst", FINAL, "text at 3 of 5: 'st', expected ''"),
    ],
)
def test_an_abort_lets_out_what_began_to_be_a_stop_string(text: str, end: Event, problem: str | None) -> None:
    stopped = replace(EXPECTED, finish_reason=FinishReason.STOP, matched_stop="stop")
    told = Told(manner=Manner.ABORT, case=0, events=[FIRST, replace(SECOND, text=text), end])
    verdict, problems = judge(told, stopped, num_epochs_lost=0)
    assert (verdict, problems) == ((Verdict.LOST, [problem]) if problem else (Verdict.PARTIAL, []))


def test_a_request_may_be_given_up_after_three_workers() -> None:
    assert judged(Manner.STREAM, FIRST, GIVEN_UP, num_epochs_lost=3) == (Verdict.GIVEN_UP, [])


def test_what_the_asker_saw_counts() -> None:
    told = Told(manner=Manner.RAW, case=0, events=[FIRST, SECOND, FINAL], faults=["no hint"])
    assert judge(told, EXPECTED, num_epochs_lost=0) == (Verdict.LOST, ["no hint"])


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([Unavailable("no engine", retry_after_seconds=1.0)], True),
        ([ConnectionFailed("failed to connect to all addresses")], True),
        ([FIRST, Unavailable("no engine", retry_after_seconds=1.0)], False),
        ([Unavailable("it broke", is_resumable=True)], False),
        ([FINAL], False),
        ([], False),
    ],
)
def test_only_what_was_not_taken_is_asked_again(events: list[Event], *, expected: bool) -> None:
    assert is_refusal(events) is expected


def test_a_seed_is_a_plan() -> None:
    expected = [EXPECTED] * 20
    assert draw_plan(7, expected) == draw_plan(7, expected)
    assert draw_plan(7, expected) != draw_plan(8, expected)
    drawn = {fault.kind for seed in range(200) for fault in draw_plan(seed, expected).faults}
    assert drawn == set(FaultKind)


async def test_who_waits_for_tokens_goes_on_at_their_number_or_when_none_can_come() -> None:
    progress = Progress()
    with progress.moving():
        early, late = asyncio.create_task(progress.reach(3)), asyncio.create_task(progress.reach(9))
        await asyncio.sleep(0)
        progress.note(3)
        await asyncio.wait_for(early, 1.0)
        assert not late.done()
        with progress.resting():
            await asyncio.wait_for(late, 1.0)
            await asyncio.wait_for(progress.reach(100), 1.0)
