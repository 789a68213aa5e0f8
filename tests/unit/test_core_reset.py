"""The end of a worker epoch: what is forgotten, who goes on, who cannot, by hand (blocks of 4)."""

from dataclasses import replace

import pytest

from scheduler_svc.core.types import FinishReason
from tests.unit.core_steps import LIMITS, fold, make_core, make_request, plan_next, rows


def test_those_that_ran_go_before_those_that_wait_in_order_of_admission() -> None:
    core = make_core(max_num_seqs=2)
    for name, handle in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        core.add(make_request(name, [handle], handle=handle, max_tokens=4))
    fold(core, plan_next(core), 50, 60)
    plan_next(core)  # in flight when the worker dies
    assert core.reset(replace(LIMITS, max_num_seqs=4)) == ()
    assert core.num_steps_in_flight == 0
    plan = plan_next(core)
    assert plan.step_id == 1
    assert plan.released_lanes.tolist() == []
    assert [admission.handle for admission in plan.admissions] == [1, 2, 3, 4]
    assert [admission.token_ids.tolist() for admission in plan.admissions] == [[1, 50], [2, 60], [3], [4]]
    assert [admission.is_first for admission in plan.admissions] == [False, False, True, True]


def test_a_preempted_request_forgets_its_late_rows() -> None:
    core = make_core(num_blocks=4)
    core.add(make_request("first", [1, 2, 3, 4], max_tokens=8))
    core.add(make_request("second", [9, 9, 9, 9], max_tokens=8))
    for step in range(6):
        plan = plan_next(core)
        if step < 3:
            fold(core, plan, 50 + step, 60 + step)
    assert core.state().num_preempted == 1
    assert core.reset(LIMITS) == ()
    plan = plan_next(core)
    assert [admission.token_ids.tolist() for admission in plan.admissions] == [
        [1, 2, 3, 4, 50, 51, 52],
        [9, 9, 9, 9, 60, 61, 62],
    ]


def test_the_prefix_cache_is_forgotten_even_where_blocks_change_their_size() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2, 3, 4, 5, 6, 7], max_tokens=2))
    plan_next(core)
    core.reset(replace(LIMITS, block_size=2))
    plan = plan_next(core)
    assert plan.admissions[0].num_computed_tokens == 0
    assert plan.admissions[0].block_ids.tolist() == [1, 2, 3, 4]
    core.add(make_request("b", [1, 2, 3, 4, 5, 6, 7], max_tokens=2))
    assert plan_next(core).admissions[0].num_computed_tokens == 6


def test_a_smaller_pool_ends_what_it_can_never_hold() -> None:
    core = make_core()
    core.add(make_request("large", [1] * 12, max_tokens=9))
    core.add(make_request("waiting", [1] * 20, max_tokens=1))
    core.add(make_request("small", [1] * 8, max_tokens=8))
    fold(core, plan_next(core), 50)
    finished = core.reset(replace(LIMITS, num_blocks=4))
    assert [(one.request_id, one.reason) for one in finished] == [
        ("large", FinishReason.DOES_NOT_FIT),
        ("waiting", FinishReason.DOES_NOT_FIT),
    ]
    assert finished[0].num_output_tokens == 1
    assert finished[0].message == (
        "max_tokens is 9, but with 12 prompt tokens must fit 32 (max_model_len) and 16 (the KV cache)"
    )
    assert finished[1].message == (
        "prompt has 20 tokens, but must leave room within 32 (max_model_len) and 16 (the KV cache)"
    )
    assert rows(plan_next(core)) == [(0, 8, True)]


def test_a_request_without_max_tokens_is_held_to_the_new_limit() -> None:
    core = make_core()
    for name in ("a", "b"):
        core.add(make_request(name, [1, 2], max_tokens=None))
    fold(core, plan_next(core), 50, 60)
    fold(core, plan_next(core), 51, 61)
    core.finish("b", FinishReason.ABORT)
    core.add(make_request("b", [1], max_tokens=None))
    (finished,) = core.reset(replace(LIMITS, max_model_len=4))
    assert (finished.request_id, finished.reason) == ("a", FinishReason.LENGTH)
    assert finished.num_output_tokens == 2
    assert plan_next(core).admissions[0].max_total_tokens == 4


def test_a_request_that_was_running_when_three_workers_were_lost_ends() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2], max_tokens=8))
    for _ in range(2):
        plan_next(core)
        assert core.reset(LIMITS) == ()
    assert core.reset(LIMITS) == ()  # it did not run in this one
    plan_next(core)
    (finished,) = core.lose_worker()
    assert finished.reason is FinishReason.WORKER_LOST
    assert finished.message == "3 workers were lost while they ran this request"
    assert core.lose_worker() == core.reset(LIMITS) == ()
    assert core.schedule() is None


def test_requests_that_only_waited_are_not_counted() -> None:
    core = make_core(max_num_seqs=1)
    core.add(make_request("a", [1, 2], max_tokens=8))
    core.add(make_request("b", [3], max_tokens=8))
    for _ in range(3):
        plan_next(core)
        ended = core.reset(replace(LIMITS, max_num_seqs=1))
    assert [one.request_id for one in ended] == ["a"]
    for _ in range(2):
        plan_next(core)
        assert core.reset(replace(LIMITS, max_num_seqs=1)) == ()


def test_a_request_whose_late_rows_were_in_flight_is_counted() -> None:
    core = make_core(num_blocks=4)
    requests = [make_request(name, [9, 9, 9, 9], max_tokens=8) for name in ("first", "second")]
    for request in requests:
        core.add(request)
    for step in range(6):
        plan = plan_next(core)
        if step < 3:
            fold(core, plan, 50 + step, 60 + step)
    assert core.state().num_preempted == 1
    assert core.lose_worker() == ()
    assert [request.num_epochs_lost for request in requests] == [1, 1]


def test_a_result_of_the_lost_epoch_is_our_own_bug() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2], max_tokens=8))
    plan = plan_next(core)
    core.reset(LIMITS)
    with pytest.raises(AssertionError, match="nothing is in flight"):
        fold(core, plan, 50)
