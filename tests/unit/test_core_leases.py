"""Leases of the scheduler core, with values worked out by hand."""

from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.plan import StepOutputs, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason
from tests.unit.core_steps import fold, make_core, make_request, plan_next, rows


def _tell(
    core: Scheduler, plan: StepPlan, iteration: int, *token_ids: int, is_last: bool = False
) -> StepOutputs:
    """Fold one iteration of a lease; without tokens only its end."""
    return core.update(_result(plan, iteration, *token_ids, is_last=is_last))


def _result(plan: StepPlan, iteration: int, *token_ids: int, is_last: bool = False) -> StepResult:
    return StepResult(
        step_id=plan.step_id,
        token_ids=np.array(token_ids, np.int32),
        iteration=iteration,
        num_iterations=int(bool(token_ids)),
        is_last=is_last,
    )


def _lease(core: Scheduler, num_steps: int) -> StepPlan:
    plan = core.schedule(num_steps=num_steps)
    assert plan is not None
    return plan


def _running(*lengths: int, **limits: Any) -> Scheduler:
    """A core whose requests a, b, ... have a prompt of three tokens and their first token."""
    core = make_core(**limits)
    for name, length in zip("abcd", lengths, strict=False):
        core.add(make_request(name, [1, 2, 3], max_tokens=length, stop_token_ids=(99,)))
    fold(core, plan_next(core), *[50] * len(lengths))
    return core


def test_a_lease_has_blocks_for_all_its_tokens() -> None:
    core = _running(20)
    plan = _lease(core, 6)
    assert (plan.num_steps, rows(plan), plan.takes_over) == (6, [(0, 6, True)], False)
    # Positions 3 to 8: the first block has one slot left.
    assert plan.append_lanes.tolist() == [0, 0]
    assert plan.append_block_ids.tolist() == [2, 3]


def test_no_row_is_granted_more_than_its_request_may_have() -> None:
    core = _running(3, 6)
    plan = _lease(core, 8)
    assert (plan.num_steps, rows(plan)) == (5, [(0, 2, True), (1, 5, True)])
    assert core.schedule(num_steps=8) is None
    assert _tell(core, plan, 0, 60, 70).finished == ()
    (finished,) = _tell(core, plan, 1, 61, 71).finished
    assert (finished.request_id, finished.reason, finished.num_output_tokens) == ("a", FinishReason.LENGTH, 3)
    outputs = [_tell(core, plan, 2 + index, -1, 72 + index, is_last=index == 2) for index in range(3)]
    assert [one.token_ids.tolist() for one in outputs] == [[72], [73], [74]]
    assert [one.request_id for one in outputs[2].finished] == ["b"]
    assert core.num_steps_in_flight == 0


def test_a_lease_is_cut_to_the_blocks_there_are_and_preempts_nobody() -> None:
    core = _running(20, 20, num_blocks=6)
    # Two blocks each take them to position 7; a third would be one for both, and there are two free.
    plan = _lease(core, 16)
    assert rows(plan) == [(0, 9, True), (1, 9, True)]
    assert core.state().num_free_blocks == 0
    second = _lease(core, 16)
    assert second.num_steps == 1
    assert core.state().num_preempted == 1


def test_what_a_lease_did_not_use_is_planned_again() -> None:
    core = _running(20)
    lease = _lease(core, 8)
    core.add(make_request("b", [4], max_tokens=1))
    assert core.is_take_over_due
    step = _lease(core, 8)
    assert (step.num_steps, step.takes_over, rows(step)) == (1, True, [(0, 1, True), (1, 1, True)])
    assert not core.is_take_over_due
    for iteration in range(2):
        assert _tell(core, lease, iteration, 60 + iteration).token_ids.tolist() == [60 + iteration]
    assert _tell(core, lease, 2, is_last=True).token_ids.tolist() == []
    assert [one.request_id for one in fold(core, step, 62, 80).finished] == ["b"]
    # 4 of 20 tokens are there; the blocks are those of the lease.
    assert rows(_lease(core, 16)) == [(0, 16, True)]
    assert core._state.lanes.token_ids[0, :7].tolist() == [1, 2, 3, 50, 60, 61, 62]


def test_every_lease_in_flight_is_taken_over_and_may_not_even_begin() -> None:
    core = _running(20)
    leases = [_lease(core, 4), _lease(core, 4)]
    assert core.finish("a", FinishReason.ABORT) is not None
    assert core.is_take_over_due
    release = _lease(core, 4)
    assert (release.takes_over, release.released_lanes.tolist(), rows(release)) == (True, [0], [])
    assert _tell(core, leases[0], 0, 60).token_ids.tolist() == []
    _tell(core, leases[0], 1, is_last=True)
    _tell(core, leases[1], 0, is_last=True)
    fold(core, release)
    assert core.state().num_free_blocks + core.state().num_cached_blocks == 16


def test_a_stop_token_ends_a_row_and_what_is_told_of_it_later_is_dropped() -> None:
    core = _running(20, 20)
    lease = _lease(core, 3)
    (finished,) = _tell(core, lease, 0, 99, 60).finished
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.STOP_TOKEN, 2)
    # Its lane is released by the next step, for which nobody is in a hurry.
    assert not core.is_take_over_due
    assert _tell(core, lease, 1, -1, 61).token_ids.tolist() == [61]
    assert _tell(core, lease, 2, -1, 62, is_last=True).token_ids.tolist() == [62]
    assert rows(_lease(core, 3)) == [(1, 3, True)]


def test_a_worker_that_ends_a_row_too_early_is_our_own_bug() -> None:
    core = _running(20)
    lease = _lease(core, 3)
    with pytest.raises(AssertionError, match="the worker ended a row that goes on"):
        _tell(core, lease, 0, -1)


def test_a_row_may_be_told_as_ended_once_its_request_has_or_its_grant_is_used_up() -> None:
    core = _running(20, 3, 20)
    lease = _lease(core, 4)
    assert core.fault_of(_result(lease, 0, 60, -1, -1)) == "it ends 2 rows that go on"
    _tell(core, lease, 0, 99, 60, 70)
    assert core.fault_of(_result(lease, 1, -1, -1, 71)) == "it ends 1 rows that go on"
    assert core.fault_of(_result(lease, 1, -1, 61, 71)) == ""
    _tell(core, lease, 1, -1, 61, 71)
    assert core.fault_of(_result(lease, 2, 50, -1, 72)) == ""
    assert core.fault_of(_result(lease, 2, -1, -1, -1)) == "it ends 1 rows that go on"
    assert core.fault_of(_result(lease, 2, is_last=True)) == ""


def test_a_preempted_requests_row_goes_on_as_well() -> None:
    core = _running(20, 20, num_blocks=6)
    first, _ = _lease(core, 16), _lease(core, 16)
    assert core.state().num_preempted == 1
    assert core.fault_of(_result(first, 0, 60, -1)) == "it ends 1 rows that go on"
    assert core.fault_of(_result(first, 0, 60, 70)) == ""


def test_a_row_that_seemed_to_be_at_its_end_is_not_left_waiting() -> None:
    core = _running(6, 20)
    first = _lease(core, 8)
    assert rows(first) == [(0, 5, True), (1, 8, True)]
    core.add(make_request("c", [4], max_tokens=1))
    step = _lease(core, 8)
    assert rows(step) == [(1, 1, True), (2, 1, True)]
    second = _lease(core, 8)
    assert rows(second) == [(1, 8, True)]
    _tell(core, first, 0, 60, 70)
    assert not core.is_take_over_due
    _tell(core, first, 1, is_last=True)
    # Lane 0 has four tokens to go and is in no step.
    assert core.is_take_over_due
    third = _lease(core, 8)
    assert (third.takes_over, rows(third)) == (True, [(0, 4, True), (1, 8, True)])


def test_tokens_of_a_lease_count_for_a_request_that_was_preempted_meanwhile() -> None:
    core = _running(12, 12, num_blocks=4)
    lease = _lease(core, 4)
    assert rows(lease) == [(0, 4, True), (1, 4, True)]
    _tell(core, lease, 0, 60, 70)
    last_with_both = _lease(core, 4)
    assert (rows(last_with_both), last_with_both.takes_over) == ([(0, 1, True), (1, 1, True)], False)
    step = _lease(core, 4)
    assert (step.released_lanes.tolist(), step.takes_over, rows(step)) == ([1], True, [(0, 1, True)])
    assert _tell(core, lease, 1, 61, 71).token_ids.tolist() == [61, 71]
    _tell(core, lease, 2, is_last=True)
    assert fold(core, last_with_both, 62, 72).token_ids.tolist() == [62, 72]
    fold(core, step, 63)
    core.finish("a", FinishReason.ABORT)
    (admission,) = _lease(core, 4).admissions
    assert admission.token_ids.tolist() == [1, 2, 3, 50, 70, 71, 72]


@pytest.mark.parametrize("num_prompt_tokens", [1, 44])
def test_a_request_that_waits_does_not_stop_leases_unless_it_can_start(num_prompt_tokens: int) -> None:
    core = _running(20, num_blocks=12, max_model_len=48)
    core.add(make_request("b", [7] * num_prompt_tokens, max_tokens=2))
    plan = _lease(core, 4)
    can_start = num_prompt_tokens == 1
    assert (len(plan.admissions), plan.num_steps) == ((1, 1) if can_start else (0, 4))
    assert not core.is_take_over_due


def test_a_request_that_may_not_run_ahead_is_never_leased() -> None:
    core = make_core()
    core.add(make_request("a", [1], max_tokens=9, runs_ahead=False))
    core.add(make_request("b", [2], max_tokens=9))
    fold(core, plan_next(core), 50, 60)
    assert _lease(core, 4).num_steps == 1
    # The other one is not leased either: the first would wait for the lease's end.
    assert (rows(plan := _lease(core, 4)), plan.num_steps) == ([(1, 1, True)], 1)
