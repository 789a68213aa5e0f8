"""Lengths that a worker group may allow which is yet to come: to be tried again, not refused for good."""

import numpy as np
import pytest

from scheduler_svc.errors import InvalidRequestError, WorkerUnavailableError
from scheduler_svc.frontend.request_check import RequestLimits, check_counts, check_request
from scheduler_svc.frontend.values import (
    AskedCounts,
    AskedRequest,
    AskedResume,
    AskedStop,
    CheckedRequest,
    TextInput,
)

NOT_ALL = RequestLimits(
    vocab_size=100,
    eos_token_ids=(7, 8),
    max_model_len=64,
    max_pool_tokens=48,
    max_prompt_tokens=200,
    max_quota_tokens=250,
    num_unknown_groups=2,
    widest_model_len=300,
)


TEXT = TextInput(text="x")


def check(asked: AskedRequest, num_prompt_tokens: int) -> CheckedRequest:
    return check_request(asked, np.arange(num_prompt_tokens, dtype=np.int32), limits=NOT_ALL)


@pytest.mark.parametrize(
    ("stop", "num_tokens", "message"),
    [
        (AskedStop(max_tokens=45), 4, "stop.max_tokens is 45, but must be at most 44 "
         "after a prompt of 4 tokens: prompt and output share the KV cache, 48 tokens"),
        (AskedStop(max_tokens=61), 4, "stop.max_tokens is 61, but must be at most 60 "
         "after a prompt of 4 tokens: prompt and output share the max_model_len, 64 tokens"),
        (AskedStop(min_tokens=45), 4, "stop.min_tokens is 45, but must be at most 44, "
         "what is left of the context"),
        (AskedStop(), 64, "number of tokens in text is 64, but must be at most 63: "
         "prompt and output share the max_model_len, 64 tokens"),
    ],
)  # fmt: skip
def test_what_another_group_may_take_is_to_be_tried_again(
    stop: AskedStop, num_tokens: int, message: str
) -> None:
    with pytest.raises(WorkerUnavailableError) as caught:
        check(AskedRequest(prompt=TEXT, stop=stop), num_tokens)
    expected = f"{message}, so far: worker groups that may allow more have not connected yet (2)"
    assert str(caught.value) == expected


def test_output_that_another_group_may_have_told_is_to_be_tried_again() -> None:
    resume = AskedResume(token_ids=np.full(45, 9))
    with pytest.raises(WorkerUnavailableError, match=r"in resume.token_ids is 45, .* at most 44, so far: "):
        check(AskedRequest(prompt=TEXT, resume=resume), 4)


@pytest.mark.parametrize(
    ("stop", "num_tokens", "message"),
    [
        (AskedStop(max_tokens=297), 4, "share the max_model_len, 300 tokens"),
        (AskedStop(max_tokens=247), 4, "share the tenant's quota, 250 tokens"),
        (AskedStop(), 201, "must be at most max_prompt_tokens, 200"),
    ],
)
def test_what_no_group_can_take_is_refused_before_all_came(
    stop: AskedStop, num_tokens: int, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check(AskedRequest(prompt=TEXT, stop=stop), num_tokens)


def test_what_a_known_group_can_take_waits_for_no_other() -> None:
    assert check(AskedRequest(prompt=TEXT, stop=AskedStop(max_tokens=44)), 4).max_output_tokens == 44


def test_counts_are_refused_early_only_where_no_group_can_take_them() -> None:
    for counts in (AskedCounts(num_prompt_tokens=64), AskedCounts(num_resumed_tokens=63)):
        check_counts(counts, NOT_ALL)
    with pytest.raises(InvalidRequestError, match=r"resume.token_ids is 250, but must be at most 249"):
        check_counts(AskedCounts(num_resumed_tokens=250), NOT_ALL)
    with pytest.raises(InvalidRequestError, match="must be at most max_prompt_tokens, 200"):
        check_counts(AskedCounts(num_prompt_tokens=201), NOT_ALL)
