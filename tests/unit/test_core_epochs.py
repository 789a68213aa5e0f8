"""Requests that may kill workers stand trial one at a time; and requests move between cores."""

from dataclasses import replace

from scheduler_svc.core.plan import StepOutputs, StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason
from tests.unit.core_steps import LIMITS, fold, make_core, make_request, plan_next, rows


def _handles(plan: StepPlan) -> list[int]:
    return [admission.handle for admission in plan.admissions]


def _answer(core: Scheduler, plan: StepPlan) -> StepOutputs:
    return fold(core, plan, *[77] * int(plan.row_samples.sum()))


def test_a_killer_ends_and_those_beside_it_do_not() -> None:
    core = make_core()
    for handle in (1, 2, 3, 4):
        core.add(make_request(f"r{handle}", [handle], handle=handle, max_tokens=12))
    for _ in range(2):
        plan = plan_next(core)
        assert _handles(plan) == [1, 2, 3, 4]
        assert core.reset(LIMITS) == ()
    # All are on their last chance: each one starts when the one before has its second token.
    plan = plan_next(core)
    assert _handles(plan) == [1]
    _answer(core, plan)
    plan = plan_next(core)
    assert (_handles(plan), rows(plan)) == ([], [(0, 1, True)])
    _answer(core, plan)
    assert _handles(plan_next(core)) == [2]
    # The worker is lost while 2 is on trial, beside 1: only 2 is counted.
    (finished,) = core.lose_worker()
    assert (finished.request_id, finished.reason) == ("r2", FinishReason.WORKER_LOST)
    assert core.reset(LIMITS) == ()
    started = []
    while core.state().num_finished_total < 4:
        plan = plan_next(core)
        started += _handles(plan)
        _answer(core, plan)
    assert started == [1, 3, 4]


def test_a_worker_that_left_in_an_orderly_way_is_not_counted() -> None:
    core = make_core()
    core.add(make_request("r1", [1], handle=1, max_tokens=3))
    for is_orderly in (True, False, True, False, True):
        plan_next(core)
        assert core.lose_worker(is_orderly=is_orderly) == ()
        assert core.reset(LIMITS) == ()
    plan_next(core)
    (finished,) = core.lose_worker()
    assert finished.message == "3 workers were lost while they ran this request"


def test_a_trial_lasts_until_what_was_in_flight_has_passed() -> None:
    core = make_core()
    for handle in (1, 2):
        core.add(make_request(f"r{handle}", [handle], handle=handle, max_tokens=12))
    for _ in range(2):
        # Three steps ahead: tokens 1, 2 and 3 of the output are in doubt.
        for _ in range(3):
            plan_next(core)
        core.reset(LIMITS)
    num_steps = 0
    while True:
        plan = plan_next(core)
        if 2 in _handles(plan):
            break
        num_steps += 1
        _answer(core, plan)
    assert num_steps == 4


def test_a_request_on_its_last_chance_delays_nobody_who_is_not() -> None:
    core = make_core()
    core.add(make_request("suspect", [1], handle=1, max_tokens=12))
    for _ in range(2):
        plan_next(core)
        core.reset(LIMITS)
    core.add(make_request("new", [2], handle=2, max_tokens=12))
    assert _handles(plan_next(core)) == [1, 2]


def test_requests_move_to_another_core_and_go_on_there() -> None:
    core, other = make_core(max_num_seqs=2), make_core(block_size=2)
    other.add(make_request("own", [40], handle=9, max_tokens=4))
    _answer(other, plan_next(other))
    other.add(make_request("waits", [41], handle=8, max_tokens=4))
    for handle in (1, 2, 3):
        core.add(make_request(f"r{handle}", [handle, 7, 7, 7, 7], handle=handle, max_tokens=4))
    fold(core, plan_next(core), 50, 60)
    assert core.lose_worker() == ()
    moved = core.give_away()
    assert [request.request_id for request in moved] == ["r1", "r2", "r3"]
    assert (core.state().num_waiting, core.state().num_running, core.state().num_preempted) == (0, 0, 0)
    assert core.schedule() is None
    assert [other.adopt(request) for request in moved] == [None, None, None]
    plan = plan_next(other)
    # Those that ran go before those that wait; one more than there are lanes.
    assert _handles(plan) == [1, 2, 8]
    assert plan.admissions[0].token_ids.tolist() == [1, 7, 7, 7, 7, 50]
    assert [admission.is_first for admission in plan.admissions] == [False, False, True]
    assert len({admission.incarnation for admission in plan.admissions}) == 3
    finished = [one.request_id for one in _answer(other, plan).finished]
    while len(finished) < 5:
        finished += [one.request_id for one in _answer(other, plan_next(other)).finished]
    assert sorted(finished) == ["own", "r1", "r2", "r3", "waits"]
    assert (core.state().num_prompt_tokens_total, other.state().num_prompt_tokens_total) == (15, 2)


def test_a_number_from_another_core_is_not_taken_for_one_of_this_core() -> None:
    core, other = make_core(), make_core(num_blocks=4)
    for name in ("first", "second"):
        core.add(make_request(f"moving {name}", [1, 2, 3, 4], max_tokens=8))
        other.add(make_request(name, [9, 9, 9, 9], max_tokens=8))
    fold(core, plan_next(core), 50, 60)
    for step in range(6):
        plan = plan_next(other)
        if step < 3:
            fold(other, plan, 50 + step, 60 + step)
    # "second" has rows in flight under its old number, which "moving second" had in its core.
    assert other.state().num_preempted == 1
    core.lose_worker()
    for request in core.give_away():
        other.adopt(request)
        assert other.finish(request.request_id, FinishReason.ABORT) is not None


def test_a_core_adopts_nothing_that_it_cannot_hold() -> None:
    core, small = make_core(), make_core(max_model_len=8)
    core.add(make_request("large", [1, 2, 3], max_tokens=6))
    core.add(make_request("open", [1] * 5, max_tokens=None))
    for _ in range(4):
        fold(core, plan_next(core), 50, 60)
    core.lose_worker()
    large, unlimited = core.give_away()
    ended = small.adopt(large)
    assert ended is not None
    assert (ended.reason, ended.num_output_tokens) == (FinishReason.DOES_NOT_FIT, 4)
    assert ended.message == (
        "max_tokens is 6, but with 3 prompt tokens must fit 8 (max_model_len) and 64 (the KV cache)"
    )
    ended = small.adopt(unlimited)
    assert ended is not None
    assert (ended.reason, ended.num_output_tokens) == (FinishReason.LENGTH, 4)
    assert small.schedule() is None


def test_a_core_tells_how_much_of_a_prompt_is_cached() -> None:
    core, other = make_core(), make_core(block_size=2)
    request = make_request("asks", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    for one in (core, other):
        assert one.num_cached_tokens(request) == 0
        one.add(make_request("first", [1, 2, 3, 4, 5, 6, 7, 9], max_tokens=2))
        plan_next(one)
    assert core.num_cached_tokens(request) == 4
    assert other.num_cached_tokens(request) == 6
    other.lose_worker()
    assert other.num_cached_tokens(request) == 0
    assert core.num_cached_tokens(request) == 4


def test_limits_that_grew_hold_for_requests_without_max_tokens() -> None:
    core = make_core(max_model_len=8)
    core.add(make_request("a", [1, 2], max_tokens=None))
    plan_next(core)
    core.reset(replace(LIMITS, max_model_len=16))
    assert plan_next(core).admissions[0].max_total_tokens == 16
