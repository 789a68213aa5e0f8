"""Preemption and re-admission, step by step by hand (blocks of 4)."""

from typing import Any

import pytest

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason
from tests.unit.core_steps import fold, make_core, make_request, plan_next, rows


def _two_in_four_blocks(num_prompt_tokens: int, max_tokens: int = 8, **options: Any) -> Scheduler:
    """Make a core whose first request takes a third block with step 6, when the second holds two."""
    core = make_core(num_blocks=4)
    core.add(make_request("first", [1, 2, 3, 4], max_tokens=8))
    core.add(make_request("second", [9] * num_prompt_tokens, max_tokens=max_tokens, **options))
    return core


@pytest.mark.parametrize("num_tokens", [7, 8, 9])
def test_preempted_around_a_block_border_and_admitted_again_with_all_its_tokens(num_tokens: int) -> None:
    core = _two_in_four_blocks(num_tokens - 5)
    for step in range(5):
        fold(core, plan_next(core), 50 + step, 60 + step)
    preempting = plan_next(core)
    assert preempting.released_lanes.tolist() == [1]
    assert rows(preempting) == [(0, 1, True)]
    assert core.state().num_preempted == 1
    fold(core, preempting, 55)
    for step in range(6, 8):
        assert core.state().num_preempted == 1
        fold(core, plan_next(core), 50 + step)
    plan = plan_next(core)
    (admission,) = plan.admissions
    assert admission.token_ids.tolist() == [9] * (num_tokens - 5) + [60, 61, 62, 63, 64]
    assert (admission.num_prompt_tokens, admission.is_first) == (num_tokens - 5, False)
    assert (admission.num_computed_tokens, admission.incarnation) == (4, 3)
    assert rows(plan) == [(admission.lane, num_tokens - 4, True)]
    for token_id in (65, 66, 67):
        outputs = fold(core, plan, token_id)
        assert outputs.token_ids.tolist() == [token_id]
        plan = plan_next(core)
    assert (outputs.finished[0].reason, outputs.finished[0].num_output_tokens) == (FinishReason.LENGTH, 8)
    assert core.state().num_preemptions_total == 1


def _preempt_with_two_late_rows(
    max_tokens: int = 8, stop_token_ids: tuple[int, ...] = ()
) -> tuple[Scheduler, list[StepPlan]]:
    """Leave steps 4, 5 and 6 in flight; the second request has rows in the first two of them."""
    core = _two_in_four_blocks(4, max_tokens, stop_token_ids=stop_token_ids)
    for step in range(3):
        fold(core, plan_next(core), 50 + step, 60 + step)
    plans = [plan_next(core) for _ in range(3)]
    assert [rows(plan) for plan in plans[:2]] == [[(0, 1, True), (1, 1, True)]] * 2
    assert (rows(plans[2]), plans[2].released_lanes.tolist()) == ([(0, 1, True)], [1])
    return core, plans


def test_it_runs_again_only_when_its_last_row_in_flight_is_folded() -> None:
    core, plans = _preempt_with_two_late_rows()
    core.finish("first", FinishReason.ABORT)  # from here on there are lanes and blocks enough
    releasing = plan_next(core)
    assert (releasing.released_lanes.tolist(), releasing.admissions) == ([0], ())
    assert fold(core, plans[0], 53, 63).token_ids.tolist() == [63]
    assert core.schedule() is None
    assert fold(core, plans[1], 54, 64).token_ids.tolist() == [64]
    (admission,) = plan_next(core).admissions
    assert admission.token_ids.tolist() == [9, 9, 9, 9, 60, 61, 62, 63, 64]


def test_a_late_result_may_still_end_it_at_its_length() -> None:
    core, plans = _preempt_with_two_late_rows(max_tokens=5)
    assert fold(core, plans[0], 53, 63).finished == ()
    outputs = fold(core, plans[1], 54, 64)
    assert sorted(outputs.token_ids.tolist()) == [54, 64]
    (finished,) = outputs.finished
    assert (finished.request_id, finished.reason) == ("second", FinishReason.LENGTH)
    assert finished.num_output_tokens == 5
    assert core.state().num_preempted == 0


def test_a_late_stop_token_ends_it_and_drops_the_later_row() -> None:
    core, plans = _preempt_with_two_late_rows(stop_token_ids=(63,))
    (finished,) = fold(core, plans[0], 53, 63).finished
    assert (finished.request_id, finished.matched_stop_token_id) == ("second", 63)
    assert fold(core, plans[1], 54, 64).token_ids.tolist() == [54]


def test_it_can_be_ended_while_its_rows_are_in_flight() -> None:
    core, plans = _preempt_with_two_late_rows()
    finished = core.finish("second", FinishReason.DEADLINE)
    assert finished is not None
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.DEADLINE, 3)
    assert fold(core, plans[0], 53, 63).token_ids.tolist() == [53]
    assert fold(core, plans[1], 54, 64).token_ids.tolist() == [54]


def test_the_latest_gives_way_first_and_an_earlier_one_never_to_a_later_one() -> None:
    """Three requests of one block each in a pool of four: all want a second one at once."""
    core = make_core(num_blocks=4)
    for name in ("a", "b", "c"):
        core.add(make_request(name, [1, 2, 3, ord(name)], max_tokens=4))
    fold(core, plan_next(core), 50, 60, 70)
    plan = plan_next(core)
    assert plan.released_lanes.tolist() == [2]
    assert rows(plan) == [(0, 1, True), (1, 1, True)]
    assert plan.append_lanes.tolist() == [0, 1]


def test_what_a_preemption_frees_is_not_given_to_a_waiting_request() -> None:
    core = _two_in_four_blocks(4)
    for step in range(5):
        fold(core, plan_next(core), 50 + step, 60 + step)
    core.add(make_request("third", [8], max_tokens=1))
    plan = plan_next(core)
    assert plan.released_lanes.tolist() == [1]
    assert plan.admissions == ()


def test_nobody_is_preempted_whose_release_frees_no_block() -> None:
    """The second's two blocks are shared by the third, which decodes; the first waits for a block."""
    core = make_core(block_size=2, num_blocks=6, max_num_batched_tokens=4, max_model_len=12)
    core.add(make_request("first", [1, 2, 3, 1, 2, 3], max_tokens=1, runs_ahead=False))
    core.add(make_request("second", [2, 2, 2, 2, 3, 3], max_tokens=1, runs_ahead=False))
    core.add(make_request("third", [2, 2, 2, 2, 1], max_tokens=6))
    plans = [plan_next(core) for _ in range(4)]
    assert [rows(plan) for plan in plans] == [
        [(0, 4, False)],
        [(1, 4, False)],
        [(2, 1, True)],
        [(2, 1, True)],
    ]
    fold(core, plans[0])
    plan = plan_next(core)  # the third takes the last free block
    assert rows(plan) == [(2, 1, True)]
    assert plan.released_lanes.tolist() == []
