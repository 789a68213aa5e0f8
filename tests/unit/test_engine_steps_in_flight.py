"""Steps in flight: answers in order, of the right size, in the vocabulary, and in time."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler_svc.core.plan import Logprobs, StepPlan, StepResult
from scheduler_svc.engine.step_clock import StepClock, StepLimits
from scheduler_svc.engine.steps_in_flight import EpochEndedError, StepsInFlight


def _steps() -> StepsInFlight:
    clock = StepClock(StepLimits(least_seconds=10.0, first_seconds=60.0))
    return StepsInFlight(vocab_size=100, clock=clock)


def _plan(step_id: int, *samples: bool) -> StepPlan:
    none = np.array([], np.int32)
    rows = np.arange(len(samples), dtype=np.int32)
    return StepPlan(
        step_id=step_id,
        released_lanes=none,
        admissions=(),
        append_lanes=none,
        append_block_ids=none,
        row_lanes=rows,
        row_num_tokens=rows + 1,
        row_samples=np.array(samples, np.bool_),
    )


def _result(step_id: int, *token_ids: int) -> StepResult:
    return StepResult(step_id=step_id, token_ids=np.array(token_ids, np.int32))


def test_answers_come_in_the_order_of_the_steps() -> None:
    steps = _steps()
    steps.add(_plan(1, True, False, True), 0.0)
    steps.add(_plan(2, False), 0.0)
    assert len(steps) == 2
    steps.take_answer(_result(1, 0, 99), 1.0)
    steps.take_answer(_result(2), 1.0)
    assert len(steps) == 0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (_result(2, 5), "answered step 2, but the oldest in flight is 1"),
        (_result(1), "answered step 1 with 0 tokens, but 1 were asked for"),
        (_result(1, 5, 6), "answered step 1 with 2 tokens, but 1 were asked for"),
        (_result(1, 100), "answered step 1 with a token outside the vocabulary"),
        (_result(1, -1), "answered step 1 with a token outside the vocabulary"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(result: StepResult, message: str) -> None:
    steps = _steps()
    steps.add(_plan(1, True, False), 0.0)
    with pytest.raises(EpochEndedError, match=message):
        steps.take_answer(result, 0.0)


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(EpochEndedError, match="answered step 1, but the oldest in flight is 0"):
        _steps().take_answer(_result(1), 0.0)


def test_a_steps_time_starts_when_it_is_the_oldest() -> None:
    steps = _steps()
    steps.check_age(1000.0)
    for step_id in (1, 2, 3):
        steps.add(_plan(step_id), 1000.0 + step_id)
    # The first of its size has 60 s, the others 10 s.
    steps.check_age(1061.0)
    steps.take_answer(_result(1), 1061.0)
    steps.check_age(1071.0)
    steps.take_answer(_result(2), 1071.0)
    steps.take_answer(_result(3), 1071.0)
    steps.check_age(9999.0)


def test_a_step_past_its_limit_ends_the_epoch() -> None:
    steps = _steps()
    steps.add(_plan(1), 1000.0)
    steps.add(_plan(2), 1000.0)
    with pytest.raises(EpochEndedError, match="step 1 took over 60 s"):
        steps.check_age(1060.1)
    steps.take_answer(_result(1), 1001.0)
    steps.check_age(1011.0)
    with pytest.raises(EpochEndedError, match="step 2 took over 10 s"):
        steps.check_age(1011.1)


def test_time_in_which_the_engine_stood_still_is_forgiven() -> None:
    steps = _steps()
    steps.add(_plan(1), 1000.0)
    steps.forgive(500.0)
    steps.check_age(1560.0)
    with pytest.raises(EpochEndedError, match="step 1 took over 60 s"):
        steps.check_age(1560.1)


def _lease(step_id: int, num_steps: int, num_rows: int) -> StepPlan:
    plan = _plan(step_id, *[True] * num_rows)
    return replace(plan, num_steps=num_steps, row_num_tokens=np.full(num_rows, num_steps, np.int32))


def _told(
    iteration: int, num_iterations: int, *token_ids: int, is_last: bool = False, step_id: int = 1
) -> StepResult:
    return replace(
        _result(step_id, *token_ids), iteration=iteration, num_iterations=num_iterations, is_last=is_last
    )


def test_a_lease_is_in_flight_until_its_last_answer() -> None:
    steps = _steps()
    steps.add(_lease(1, 4, 2), 1.0)
    assert steps.take_answer(_told(0, 1, 5, 6), 1.5).seconds_since_sent == 0.5
    steps.take_answer(_told(1, 2, 5, -1, 6, -1), 2.0)
    assert len(steps) == 1
    steps.take_answer(_told(3, 0, is_last=True), 2.0)
    assert len(steps) == 0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (_told(1, 1, 5), "told 1 iterations of step 1 from 1 on, but 0 of 3 were told before"),
        (_told(0, 4, 5, 5, 5, 5, is_last=True), "told 4 iterations of step 1 from 0 on"),
        (_told(0, 3, 5, 5, 5), "told 3 iterations of step 1 from 0 on"),
        (_told(0, 0), "told 0 iterations of step 1 from 0 on"),
        (_told(0, 2, 5), "answered step 1 with 1 tokens, but 2 were asked for"),
        (_told(0, 1, -2), "answered step 1 with a token outside the vocabulary"),
    ],
)
def test_an_answer_that_does_not_fit_its_lease_is_refused(result: StepResult, message: str) -> None:
    steps = _steps()
    steps.add(_lease(1, 3, 1), 0.0)
    with pytest.raises(EpochEndedError, match=message):
        steps.take_answer(result, 0.0)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([99, -1], "answered step 1 with a log-probability of a token outside the vocabulary"),
        ([99, 100], "answered step 1 with a log-probability of a token outside the vocabulary"),
        ([5] * 22, "answered step 1 with 22 log-probabilities of a token, but 21 are the most"),
        ([0, 99] + [5] * 19, None),
        ([], None),
    ],
)
def test_log_probabilities_are_of_few_tokens_of_the_vocabulary(
    token_ids: list[int], message: str | None
) -> None:
    steps = _steps()
    steps.add(_plan(1, True), 0.0)
    logprobs = Logprobs(
        counts=np.array([len(token_ids)], np.int32),
        token_ids=np.array(token_ids, np.int32),
        values=np.zeros(len(token_ids), np.float32),
    )
    result = replace(_result(1, 5), logprobs=logprobs)
    if message is None:
        steps.take_answer(result, 0.0)
    else:
        with pytest.raises(EpochEndedError, match=message):
            steps.take_answer(result, 0.0)


def test_a_step_that_is_no_lease_has_one_answer() -> None:
    steps = _steps()
    steps.add(_plan(1, True), 0.0)
    with pytest.raises(EpochEndedError, match="told 1 iterations of step 1 from 0 on"):
        steps.take_answer(_told(0, 1, 5), 0.0)
