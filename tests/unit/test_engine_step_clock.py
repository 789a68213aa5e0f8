"""How long steps may take: the least limit, a multiple of what is usual, and patience with the first."""

import numpy as np
import pytest

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.engine.step_clock import StepClock, StepLimits, StepSize, size_of

DECODE_8 = StepSize(4, is_decode=True)
DECODE_16 = StepSize(5, is_decode=True)


def _clock() -> StepClock:
    return StepClock(StepLimits(least_seconds=10.0, first_seconds=300.0))


def _plan(*row_num_tokens: int) -> StepPlan:
    none = np.array([], np.int32)
    rows = np.arange(len(row_num_tokens), dtype=np.int32)
    return StepPlan(
        step_id=1,
        released_lanes=none,
        admissions=(),
        append_lanes=none,
        append_block_ids=none,
        row_lanes=rows,
        row_num_tokens=np.array(row_num_tokens, np.int32),
        row_samples=np.ones(len(rows), np.bool_),
    )


@pytest.mark.parametrize(
    ("row_num_tokens", "size"),
    [
        ([], StepSize(0, is_decode=True)),
        ([1], StepSize(1, is_decode=True)),
        ([1] * 8, DECODE_8),
        ([1] * 15, DECODE_8),
        ([1] * 16, DECODE_16),
        ([1, 14], StepSize(4, is_decode=False)),
        ([1000, 24], StepSize(11, is_decode=False)),
    ],
)
def test_steps_are_compared_by_kind_and_powers_of_two(row_num_tokens: list[int], size: StepSize) -> None:
    assert size_of(_plan(*row_num_tokens)) == size


def test_the_first_step_of_each_size_has_more_time() -> None:
    clock = _clock()
    assert clock.limit_seconds(DECODE_8) == 300.0
    clock.note(DECODE_8, 25.0)
    assert clock.limit_seconds(DECODE_8) == 10.0
    assert clock.limit_seconds(DECODE_16) == 300.0


def test_the_limit_is_twenty_times_what_is_usual_but_not_below_the_least() -> None:
    clock = _clock()
    clock.note(DECODE_8, 25.0)  # the first one says nothing of the others
    clock.note(DECODE_8, 2.0)
    assert clock.limit_seconds(DECODE_8) == 40.0
    clock.note(DECODE_8, 3.0)
    assert clock.limit_seconds(DECODE_8) == pytest.approx(42.0)
    for _ in range(100):
        clock.note(DECODE_8, 0.005)
    assert clock.limit_seconds(DECODE_8) == 10.0


def test_the_first_step_never_has_less_time_than_the_others() -> None:
    clock = StepClock(StepLimits(least_seconds=10.0, first_seconds=1.0))
    assert clock.limit_seconds(DECODE_8) == 10.0
