"""What the requests of fault runs ask for, and what each must get: the output of an undisturbed run.

Pure: knows nothing about faults, channels or who asks how.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from stepwire_client import Delta, FinalOutput, FinishReason, GenerationRequest, StepwireClientError

VOCAB_SIZE = 320
FIRST_PLAIN_ID = 3
"""Ids before it are special tokens."""
NUM_BASE_CASES = 12
SHARED_PREFIX_TOKENS = 40

Event = Delta | FinalOutput | StepwireClientError
"""What a client is told of one request, in order: deltas, then one end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request, as often as it is asked."""

    prompt: str | tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def request(self, request_id: str = "") -> GenerationRequest:
        """Build the client's request."""
        return GenerationRequest.of(self.prompt, request_id=request_id, **self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The output that a case must have, whatever happens to its servers."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    matched_stop: str | int | None
    num_prompt_tokens: int
    num_output_tokens: int


def expected_of(events: Sequence[Event]) -> Expected:
    """Read off the expected output of an undisturbed request's events."""
    *deltas, final = events
    assert isinstance(final, FinalOutput), final
    return Expected(
        token_ids=token_ids_of(deltas),
        text=text_of(deltas),
        finish_reason=final.finish_reason,
        matched_stop=final.matched_stop,
        num_prompt_tokens=final.usage.num_prompt_tokens,
        num_output_tokens=final.usage.num_output_tokens,
    )


def token_ids_of(events: Sequence[Event]) -> tuple[int, ...]:
    """Join the token ids that were told."""
    return tuple(one for event in events if isinstance(event, Delta) for one in event.token_ids)


def text_of(events: Sequence[Event]) -> str:
    """Join the text that was told."""
    return "".join(event.text for event in events if isinstance(event, Delta))


def base_cases() -> tuple[Case, ...]:
    """Make requests of every kind: greedy and seeded, penalized, long, of text, with a shared prefix."""
    return tuple(_base_case(index) for index in range(NUM_BASE_CASES))


def _base_case(index: int) -> Case:
    rng = np.random.default_rng(index)
    num_tokens = 150 if index == 5 else 5 + 3 * index
    prompt: str | tuple[int, ...] = tuple(rng.integers(FIRST_PLAIN_ID, VOCAB_SIZE, num_tokens).tolist())
    if index >= NUM_BASE_CASES - 3:  # these find a prefix in the cache, or each other's
        shared = np.random.default_rng(999).integers(FIRST_PLAIN_ID, VOCAB_SIZE, SHARED_PREFIX_TOKENS)
        prompt = (*shared.tolist(), *prompt)
    options: dict[str, Any] = {
        "max_tokens": 40 + 9 * index if index != 5 else 60,
        "ignore_eos": index % 4 != 0,
        "temperature": 0.0 if index % 3 == 0 else 1.0,
        "seed": 1000 + index,
    }
    extras: dict[int, dict[str, Any]] = {
        1: {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
        2: {"logprobs": 2},
        4: {"top_k": 50, "top_p": 0.9, "stop": ["never to be found", "@@@@"]},
        7: {"cache_salt": "a tenant", "logit_bias": {77: 2.0}},
        8: {"stop_token_ids": [50, 60], "min_tokens": 20},
    }
    if index in {3, 4}:
        prompt = "The capital of France is Paris, and " + "the answer " * index
    return Case(prompt=prompt, options=options | extras.get(index, {}))


def stopped_cases(cases: Sequence[Case], expected: Sequence[Expected]) -> tuple[Case, ...]:
    """Derive requests that end early: by a string, or by an id, in the midst of what was told before."""
    derived = []
    for index in (1, 6, 9, 10):
        case, told = cases[index], expected[index]
        middle = len(told.text) // 2
        stop = {"stop": ["not in it", told.text[middle : middle + 4]]}
        derived.append(Case(prompt=case.prompt, options={**case.options, **stop}))
        stop_id = {"stop_token_ids": [told.token_ids[len(told.token_ids) // 2]]}
        derived.append(Case(prompt=case.prompt, options={**case.options, **stop_id}))
    return tuple(derived)
