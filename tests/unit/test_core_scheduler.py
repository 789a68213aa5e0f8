"""The scheduler core's steps and ends, with values worked out by hand."""

import numpy as np
import pytest

from scheduler_svc.core.plan import Logprobs, StepResult
from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import DuplicateRequestError, InvalidRequestError, QueueFullError
from tests.unit.core_steps import fold, make_core, make_request, plan_next, rows


def test_a_prompt_is_cut_to_the_token_budget_and_only_its_last_chunk_samples() -> None:
    core = make_core(max_num_batched_tokens=8)
    core.add(make_request("a", list(range(20)), max_tokens=2))
    plans = [plan_next(core) for _ in range(4)]
    assert [rows(plan) for plan in plans] == [
        [(0, 8, False)],
        [(0, 8, False)],
        [(0, 4, True)],
        [(0, 1, True)],
    ]
    assert [plan.step_id for plan in plans] == [1, 2, 3, 4]
    (admission,) = plans[0].admissions
    assert admission.token_ids.tolist() == list(range(20))
    assert admission.block_ids.tolist() == [1, 2]
    assert plans[1].append_block_ids.tolist() == [3, 4]
    assert plans[2].append_block_ids.tolist() == [5]
    assert plans[3].append_lanes.tolist() == [0]
    assert plans[3].append_block_ids.tolist() == [6]


def test_decode_rows_come_first_and_a_prompt_gets_what_is_left() -> None:
    core = make_core(max_num_batched_tokens=6)
    core.add(make_request("a", [1, 2, 3], max_tokens=8))
    core.add(make_request("b", [1] * 10, max_tokens=8))
    assert rows(plan_next(core)) == [(0, 3, True), (1, 3, False)]
    assert rows(plan_next(core)) == [(0, 1, True), (1, 5, False)]
    assert rows(plan_next(core)) == [(0, 1, True), (1, 2, True)]
    assert rows(plan_next(core)) == [(0, 1, True), (1, 1, True)]


def test_known_tokens_limit_the_admissions_of_a_step() -> None:
    core = make_core(
        block_size=1024, num_blocks=600, max_num_batched_tokens=2**20, max_model_len=2**20, max_num_seqs=5
    )
    prompt = [7] * (2**19 + 1)
    core.add(make_request("a", prompt, max_tokens=9))
    assert rows(plan_next(core)) == [(0, 2**19 + 1, True)]
    for request_id in "bcde":
        core.add(make_request(request_id, prompt, max_tokens=9))
    # All but one token of each is cached, so that the budget would allow all four.
    assert rows(plan_next(core)) == [(0, 1, True), (1, 1, True), (2, 1, True)]
    assert rows(plan_next(core)) == [(0, 1, True), (1, 1, True), (2, 1, True), (3, 1, True), (4, 1, True)]


def test_lanes_limit_the_rows_and_the_next_request_waits_for_one() -> None:
    core = make_core(max_num_seqs=1)
    core.add(make_request("a", [1, 2], max_tokens=1))
    core.add(make_request("b", [3], max_tokens=1))
    first = plan_next(core)
    assert rows(first) == [(0, 2, True)]
    assert core.schedule() is None
    fold(core, first, 5)
    second = plan_next(core)
    assert second.released_lanes.tolist() == [0]
    assert [admission.lane for admission in second.admissions] == [0]
    assert second.admissions[0].incarnation == 2


def test_a_length_end_is_predicted_and_wastes_no_row() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2, 3], max_tokens=2, owner=3, handle=9))
    plans = [plan_next(core), plan_next(core)]
    assert core.schedule() is None
    assert fold(core, plans[0], 5).finished == ()
    assert core.schedule() is None
    outputs = fold(core, plans[1], 6)
    assert (outputs.owners.tolist(), outputs.handles.tolist(), outputs.token_ids.tolist()) == ([3], [9], [6])
    (finished,) = outputs.finished
    assert (finished.request_id, finished.owner, finished.handle) == ("a", 3, 9)
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.LENGTH, 2)


def test_a_plan_may_hold_nothing_but_releases() -> None:
    core = make_core()
    core.add(make_request("a", [1], max_tokens=1))
    fold(core, plan_next(core), 5)
    plan = plan_next(core)
    assert plan.released_lanes.tolist() == [0]
    assert rows(plan) == []
    assert fold(core, plan).token_ids.tolist() == []
    assert core.schedule() is None


def test_a_stop_token_at_depth_4_wastes_three_rows_which_are_dropped() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2], max_tokens=9, stop_token_ids=(7,)))
    plans = [plan_next(core) for _ in range(4)]
    (finished,) = fold(core, plans[0], 7).finished
    assert (finished.reason, finished.matched_stop_token_id) == (FinishReason.STOP_TOKEN, 7)
    assert finished.num_output_tokens == 1
    for plan in plans[1:]:
        outputs = fold(core, plan, 3)
        assert (outputs.token_ids.tolist(), outputs.finished) == ([], ())
    assert rows(plan_next(core)) == []
    assert core.state().num_output_tokens_total == 1


def test_a_stop_token_counts_only_after_min_tokens() -> None:
    core = make_core()
    core.add(make_request("a", [1], max_tokens=9, stop_token_ids=(7,), min_tokens=2))
    for _ in range(2):
        assert fold(core, plan_next(core), 7).finished == ()
    (finished,) = fold(core, plan_next(core), 7).finished
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.STOP_TOKEN, 3)


@pytest.mark.parametrize("stop_token_id", [7, 15, 100_000])
def test_more_stop_ids_than_columns_all_count(stop_token_id: int) -> None:
    core = make_core()
    core.add(make_request("a", [1], stop_token_ids=(*range(7, 16), 100_000)))
    assert fold(core, plan_next(core), 16).finished == ()
    (finished,) = fold(core, plan_next(core), stop_token_id).finished
    assert finished.matched_stop_token_id == stop_token_id


def test_a_request_that_does_not_run_ahead_waits_for_its_row() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2], max_tokens=3, runs_ahead=False))
    core.add(make_request("b", [3, 4], max_tokens=3))
    first = plan_next(core)
    assert rows(first) == [(0, 2, True), (1, 2, True)]
    second = plan_next(core)
    assert rows(second) == [(1, 1, True)]
    fold(core, first, 5, 6)
    assert rows(plan_next(core)) == [(0, 1, True), (1, 1, True)]


def test_log_probabilities_follow_the_tokens_that_count() -> None:
    core = make_core()
    for name in ("a", "b", "c"):
        core.add(make_request(name, [1], max_tokens=2))
    plan = plan_next(core)
    core.finish("b", FinishReason.ABORT)
    logprobs = Logprobs(
        counts=np.array([1, 2, 2], np.int32),
        token_ids=np.array([4, 5, 50, 6, 60], np.int32),
        values=np.array([-1, -2, -3, -4, -5], np.float32),
    )
    result = StepResult(step_id=1, token_ids=np.array([4, 5, 6], np.int32), logprobs=logprobs)
    outputs = core.update(result)
    assert plan.step_id == 1
    assert outputs.token_ids.tolist() == [4, 6]
    assert outputs.logprobs is not None
    assert outputs.logprobs.counts.tolist() == [1, 2]
    assert outputs.logprobs.token_ids.tolist() == [4, 6, 60]
    assert outputs.logprobs.values.tolist() == [-1, -4, -5]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "message"),
    [
        (0, 1, "prompt has 0 tokens, but must have at least 1"),
        (1, 0, "max_tokens is 0, but must be at least 1"),
        (32, None, r"prompt has 32 tokens, but must leave room within 40 \(max_model_len\) and 32 \("),
        (
            20,
            13,
            r"max_tokens is 13, but with 20 prompt tokens must fit 40 \(max_model_len\) and 32 \(the",
        ),
    ],
)
def test_what_never_fits_is_refused_by_field_value_and_limit(
    num_prompt_tokens: int, max_tokens: int | None, message: str
) -> None:
    core = make_core(num_blocks=8, max_model_len=40)
    with pytest.raises(InvalidRequestError, match=message):
        core.add(make_request("a", [1] * num_prompt_tokens, max_tokens=max_tokens))
    assert core.schedule() is None
    core.add(make_request("a", [1] * 20, max_tokens=12))


def test_a_request_without_max_tokens_gets_what_fits() -> None:
    core = make_core(num_blocks=4, max_model_len=18)
    core.add(make_request("a", [1] * 10))
    core.add(make_request("b", [1] * 10, max_tokens=2))
    plan = plan_next(core)
    assert [admission.max_total_tokens for admission in plan.admissions] == [16]


def test_duplicates_and_a_full_queue_are_refused_and_an_ended_id_is_free_again() -> None:
    core = make_core(max_num_waiting=1)
    core.add(make_request("a", [1]))
    with pytest.raises(DuplicateRequestError, match="request_id is 'a', but must not be in use"):
        core.add(make_request("a", [2]))
    with pytest.raises(QueueFullError, match="1 requests wait, the most that max_num_waiting allows"):
        core.add(make_request("b", [2]))
    assert core.finish("a", FinishReason.ABORT) is not None
    core.add(make_request("a", [2]))


def test_finish_answers_once_in_every_state() -> None:
    core = make_core(max_num_seqs=1)
    core.add(make_request("running", [1] * 8, max_tokens=8))
    core.add(make_request("waiting", [2], max_tokens=8))
    plan_next(core)
    for request_id, reason in (("waiting", FinishReason.DEADLINE), ("running", FinishReason.DISCONNECT)):
        finished = core.finish(request_id, reason)
        assert finished is not None
        assert (finished.request_id, finished.reason) == (request_id, reason)
        assert core.finish(request_id, reason) is None
    assert core.finish("run", FinishReason.ABORT) is None
    state = core.state()
    assert state.num_free_blocks + state.num_cached_blocks == 16
    assert state.num_finished_total == 2


def test_a_stop_string_says_how_many_tokens_count_and_beats_what_is_in_flight() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2], max_tokens=3))
    plans = [plan_next(core) for _ in range(3)]
    fold(core, plans[0], 5)
    fold(core, plans[1], 6)
    finished = core.finish("a", FinishReason.STOP_STRING, num_tokens=1)
    assert finished is not None
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.STOP_STRING, 1)
    outputs = fold(core, plans[2], 8)
    assert (outputs.token_ids.tolist(), outputs.finished) == ([], ())


def test_a_stop_string_that_comes_after_the_end_is_told_nothing() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2], max_tokens=1))
    assert fold(core, plan_next(core), 5).finished[0].reason is FinishReason.LENGTH
    assert core.finish("a", FinishReason.STOP_STRING, num_tokens=1) is None


def test_results_out_of_order_are_our_own_bug() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2]))
    plan_next(core)
    second = plan_next(core)
    with pytest.raises(AssertionError, match="result of step 2, expected 1"):
        fold(core, second, 5)
