"""Judges one request of a fault run: it ended exactly once, and told what it would have told undisturbed.

Pure: knows nothing about processes, channels or when a fault came.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from stepwire_client import (
    Cancelled,
    DeadlineExceeded,
    Delta,
    FinalOutput,
    FinishReason,
    Internal,
    Unavailable,
)

from tests.e2e.faults.cases import Event, Expected, text_of, token_ids_of

NUM_EPOCHS_TO_GIVE_UP = 3
"""After so many lost workers a request may end with an error: it may be what they died of."""

HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Told in the place of a character that an abort cut in two."""


class Manner(Enum):
    """How a request is asked."""

    STREAM = "asyncio client"
    THREAD = "threads' client"
    SLOW = "slow reader"
    BULK = "GenerateMany"
    RAW = "raw stub"
    DRAWN = "raw stub, seed drawn"
    DEADLINE = "deadline"
    CANCEL = "cancelled"
    ABORT = "aborted"
    VANISH = "vanished"


LEAVES = frozenset({Manner.CANCEL, Manner.VANISH})


@dataclass(slots=True, kw_only=True)
class Told:
    """All that one request was told."""

    manner: Manner
    case: int
    """Its place in the catalogue."""
    events: list[Event] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What broke the protocol, as far as its asker saw."""
    seed: int | None = None
    """The seed that the server drew and told, where the client gave none."""
    num_resumes: int = 0
    num_refusals: int = 0
    """Times that it was not taken, with the hint to come again."""

    def start_again(self) -> None:
        """Note that it was not taken; nothing may have been told."""
        self.num_refusals += 1
        self.events.clear()


class Verdict(Enum):
    """What became of a request."""

    COMPLETE = "complete"
    PARTIAL = "ended early, as asked"
    GIVEN_UP = "given up after three workers"
    LOST = "lost"


def is_refusal(events: Sequence[Event]) -> bool:
    """Tell whether the request was not taken, and may be asked again."""
    if len(events) != 1 or not isinstance(events[0], Unavailable):
        return False
    error = events[0]
    is_unreachable = "failed to connect to all addresses" in error.message
    return error.retry_after_seconds is not None or is_unreachable


def judge(told: Told, expected: Expected, *, num_epochs_lost: int) -> tuple[Verdict, list[str]]:
    """Return what became of a request, and all that is wrong with it."""
    problems = [*told.faults, *_problems_of_order(told)]
    if problems:
        return Verdict.LOST, problems
    end = told.events[-1] if told.events and not isinstance(told.events[-1], Delta) else None
    is_complete = isinstance(end, FinalOutput) and end.finish_reason is not FinishReason.ABORT
    is_aborted = isinstance(end, FinalOutput) and not is_complete
    problems = _problems_of_prefix(told, expected, is_aborted=is_aborted)
    if problems:
        return Verdict.LOST, problems
    if is_complete:
        assert isinstance(end, FinalOutput)
        problems = _problems_of_end(told, expected, end)
        return (Verdict.LOST if problems else Verdict.COMPLETE), problems
    if _may_end_early(told.manner, end):
        return Verdict.PARTIAL, []
    if _is_given_up(end) and num_epochs_lost >= NUM_EPOCHS_TO_GIVE_UP:
        return Verdict.GIVEN_UP, []
    return Verdict.LOST, [f"it ended after {len(token_ids_of(told.events))} tokens with {end!r}"]


def _problems_of_order(told: Told) -> list[str]:
    ends = [index for index, event in enumerate(told.events) if not isinstance(event, Delta)]
    if len(ends) > 1:
        return [f"it ended {len(ends)} times"]
    if ends and ends[0] != len(told.events) - 1:
        return ["more was told after the end"]
    if not ends and told.manner not in LEAVES:
        return ["it did not end"]
    return []


def _problems_of_prefix(told: Told, expected: Expected, *, is_aborted: bool) -> list[str]:
    token_ids, text, whole = token_ids_of(told.events), text_of(told.events), expected.text
    if is_aborted:
        text = text.rstrip(HALF_CHARACTER)
        if isinstance(expected.matched_stop, str):
            whole += expected.matched_stop[
                :-1
            ]  # what began to be a stop string is text where no more follows
    problems = []
    if token_ids != expected.token_ids[: len(token_ids)]:
        at = next(
            (
                i
                for i, pair in enumerate(zip(token_ids, expected.token_ids, strict=False))
                if len({*pair}) > 1
            ),
            len(expected.token_ids),
        )
        problems.append(
            f"token {at} of {len(token_ids)} is wrong: {token_ids[at : at + 4]}, "
            f"expected {expected.token_ids[at : at + 4]}"
        )
    if not whole.startswith(text):
        at = next(i for i in range(len(text)) if not whole.startswith(text[: i + 1]))
        problems.append(
            f"text at {at} of {len(text)}: {text[at : at + 40]!r}, expected {whole[at : at + 40]!r}"
        )
    logprob_ids = [
        position.sampled.token_id
        for event in told.events
        if isinstance(event, Delta)
        for position in event.logprobs
    ]
    if logprob_ids and tuple(logprob_ids) != token_ids:
        problems.append(f"{len(logprob_ids)} log-probabilities are not of the {len(token_ids)} tokens")
    return problems


def _problems_of_end(told: Told, expected: Expected, final: FinalOutput) -> list[str]:
    pairs = {
        "tokens": (len(token_ids_of(told.events)), len(expected.token_ids)),
        "characters": (len(text_of(told.events)), len(expected.text)),
        "finish_reason": (final.finish_reason, expected.finish_reason),
        "matched_stop": (final.matched_stop, expected.matched_stop),
        "num_prompt_tokens": (final.usage.num_prompt_tokens, expected.num_prompt_tokens),
        "num_output_tokens": (final.usage.num_output_tokens, expected.num_output_tokens),
    }
    return [
        f"{name}: {found!r}, expected {right!r}" for name, (found, right) in pairs.items() if found != right
    ]


def _may_end_early(manner: Manner, end: Event | None) -> bool:
    if manner in LEAVES:
        return end is None or isinstance(end, Cancelled)
    if manner is Manner.ABORT:
        return isinstance(end, FinalOutput)  # with the reason ABORT: any other is complete
    return manner is Manner.DEADLINE and isinstance(end, DeadlineExceeded)


def _is_given_up(end: Event | None) -> bool:
    return isinstance(end, Internal) and "workers were lost while they ran" in end.message
