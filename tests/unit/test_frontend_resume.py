"""Output goes on where a broken stream had got: at every break, text and end are those of a whole stream."""

from collections.abc import Iterator

import numpy as np
import pytest

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.detokenizer import ByteLevelDetokenizer
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.request_check import RequestLimits, check_request
from scheduler_svc.frontend.resume import resume_generation
from scheduler_svc.frontend.stop_strings import StopStringMatcher
from scheduler_svc.frontend.values import (
    AskedRequest,
    AskedResume,
    AskedStop,
    CheckedRequest,
    Ended,
    TokenIdsInput,
)

EOS = 256
PIECES: list[str | bytes] = [*(bytes([byte]) for byte in range(256)), "<eos>"]
TEXT = "ab €é STO STOPS \N{GRINNING FACE}x"


def check(stop: AskedStop, token_ids: list[int], num_text_bytes: int | None = None) -> CheckedRequest:
    asked = AskedRequest(
        prompt=TokenIdsInput(token_ids=np.array([1], np.int64)),
        stop=stop,
        resume=AskedResume(token_ids=np.array(token_ids, np.int64), num_text_bytes=num_text_bytes),
    )
    limits = RequestLimits(vocab_size=257, eos_token_ids=(EOS,), max_model_len=64, max_pool_tokens=0)
    return check_request(asked, np.array([1], np.int32), limits=limits)


def make_generation(stop: AskedStop) -> Generation:
    matcher = StopStringMatcher(stop.stop_strings, includes_stop_string=stop.includes_stop_string)
    return Generation(
        ByteLevelDetokenizer(PIECES),
        matcher if stop.stop_strings else None,
        min_tokens=stop.min_tokens,
        silent_token_ids=frozenset() if stop.includes_stop_string else frozenset([EOS]),
    )


def take(generation: Generation) -> tuple[str, list[int]]:
    delta = generation.take()
    return ("", []) if delta is None else (delta.text, delta.token_ids)


def run(generation: Generation, token_ids: list[int]) -> tuple[int, str]:
    """Push until the end, as the engine's tokens come; return how many were taken, and all the text."""
    num_taken, text = 0, ""
    for token_id in token_ids:
        is_matched = generation.push(token_id)
        num_taken += 1
        text += take(generation)[0]
        if is_matched or token_id == EOS:
            break
    generation.close()
    return num_taken, text + take(generation)[0]


def prefixes(generation: Generation, token_ids: list[int]) -> Iterator[tuple[list[int], str]]:
    """Yield what a stream has told after each token."""
    text = ""
    yield [], text
    for count, token_id in enumerate(token_ids, start=1):
        generation.push(token_id)
        text += take(generation)[0]
        yield token_ids[:count], text


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize(
    "stop",
    [
        AskedStop(),
        AskedStop(stop_strings=("STOP",)),
        AskedStop(stop_strings=("STOP", "€"), min_tokens=5),
        AskedStop(stop_strings=("STOP",), includes_stop_string=True),
        AskedStop(max_tokens=12),
        AskedStop(max_tokens=4),  # ends inside a character
    ],
)
async def test_at_every_break_the_rest_is_what_was_missing(stop: AskedStop, *, is_counted: bool) -> None:
    token_ids = [*TEXT.encode(), EOS][: stop.max_tokens]
    num_taken, text = run(make_generation(stop), token_ids)
    token_ids = token_ids[:num_taken]
    for told_ids, told_text in prefixes(make_generation(stop), token_ids):
        num_text_bytes = len(told_text.encode()) if is_counted else None
        generation = make_generation(stop)
        ended = await resume_generation(generation, check(stop, told_ids, num_text_bytes))
        assert (ended is not None) == (told_ids == token_ids)
        rest, rest_ids = take(generation)
        assert rest_ids == []
        _, more = run(generation, token_ids[len(told_ids) :])
        assert told_text + rest + more == text
        assert generation.num_tokens == len(token_ids)


async def test_text_told_after_the_last_token_is_not_told_again() -> None:
    stop = AskedStop(stop_strings=("STOP",), max_tokens=3)
    for num_told, rest in ((0, "aST"), (1, "ST"), (3, "")):
        generation = make_generation(stop)
        ended = await resume_generation(generation, check(stop, list(b"aST"), num_told))
        assert ended == Ended(reason=FinishReason.LENGTH)
        assert take(generation) == (rest, [])


@pytest.mark.parametrize(
    ("stop", "token_ids", "ended"),
    [
        (AskedStop(), [97, EOS], Ended(reason=FinishReason.STOP_TOKEN, matched_stop_token_id=EOS)),
        (AskedStop(min_tokens=2), [97, EOS], None),
        (
            AskedStop(min_tokens=1),
            [97, EOS],
            Ended(reason=FinishReason.STOP_TOKEN, matched_stop_token_id=EOS),
        ),
        (AskedStop(ignores_eos=True), [97, EOS], None),
        (
            AskedStop(max_tokens=2),
            [97, EOS],
            Ended(reason=FinishReason.STOP_TOKEN, matched_stop_token_id=EOS),
        ),
        (AskedStop(max_tokens=2), [97, 98], Ended(reason=FinishReason.LENGTH)),
        (AskedStop(), [97] * 63, Ended(reason=FinishReason.LENGTH)),
        (AskedStop(max_tokens=2, stop_strings=("ab",)), [97, 98], Ended(reason=FinishReason.STOP_STRING)),
        (AskedStop(max_tokens=2), [], None),
    ],
)
async def test_output_that_ends_the_request_ends_it(
    stop: AskedStop, token_ids: list[int], ended: Ended | None
) -> None:
    assert await resume_generation(make_generation(stop), check(stop, token_ids)) == ended


async def test_a_request_of_its_own_begins_at_the_beginning() -> None:
    asked = AskedRequest(prompt=TokenIdsInput(token_ids=np.array([1], np.int64)))
    limits = RequestLimits(vocab_size=257, eos_token_ids=(EOS,), max_model_len=64, max_pool_tokens=0)
    generation = make_generation(AskedStop())
    checked = check_request(asked, np.array([1], np.int32), limits=limits)
    assert await resume_generation(generation, checked) is None
    assert generation.take() is None


@pytest.mark.parametrize(
    ("stop", "token_ids", "num_text_bytes", "message"),
    [
        (
            AskedStop(),
            [97],
            2,
            "resume.num_text_bytes is 2, but must be at most 1, the text of resume.token_ids",
        ),
        (
            AskedStop(),
            list("é€".encode()),
            3,
            "resume.num_text_bytes is 3, but must not be inside a character",
        ),
        (
            AskedStop(),
            [97, EOS, 98],
            None,
            "resume.token_ids[1] is 256, but must be the last one, because it ends",
        ),
        (
            AskedStop(stop_strings=("ab",)),
            [97, 98, 99],
            None,
            "resume.token_ids go on after token 2, but its text ends the request: 'ab'",
        ),
        (
            AskedStop(max_tokens=2),
            [97, 98, 99],
            None,
            "number of entries in resume.token_ids is 3, but must be at most 2",
        ),
        (AskedStop(), [97] * 64, None, "number of entries in resume.token_ids is 64, but must be at most 63"),
    ],
)
async def test_output_that_the_request_cannot_have_is_refused(
    stop: AskedStop, token_ids: list[int], num_text_bytes: int | None, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await resume_generation(make_generation(stop), check(stop, token_ids, num_text_bytes))
    assert str(caught.value).startswith(message)
