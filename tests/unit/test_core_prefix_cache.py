"""What requests share through the prefix cache, and what they must not, by hand (blocks of 4)."""

import pytest

from scheduler_svc.core.plan import Admission, StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason
from tests.unit.core_steps import fold, make_core, make_request, plan_next, rows

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def _admitted(plan: StepPlan) -> Admission:
    (admission,) = plan.admissions
    return admission


def _core_that_ran(token_ids: list[int], *outputs: int, cache_salt: str = "") -> Scheduler:
    """Run one request to its end, so that nothing but its cached blocks is left."""
    core = make_core()
    core.add(make_request("first", token_ids, max_tokens=len(outputs), cache_salt=cache_salt))
    for token_id in outputs:
        fold(core, plan_next(core), token_id)
    fold(core, plan_next(core))
    return core


@pytest.mark.parametrize(
    ("token_ids", "num_hit_tokens"),
    [
        (PROMPT[:7], 4),
        (PROMPT, 4),  # the whole prompt is cached, but its last token must be computed
        ([*PROMPT, 9], 8),
        ([1, 2, 3, 9, 5, 6, 7, 8, 9], 0),
        ([1, 2, 3, 4, 9, 6, 7, 8, 9], 4),
        (PROMPT[4:], 0),
    ],
)
def test_a_hit_is_the_longest_run_of_full_blocks_but_never_the_last_token(
    token_ids: list[int], num_hit_tokens: int
) -> None:
    core = _core_that_ran(PROMPT, 9)
    core.add(make_request("second", token_ids, max_tokens=1))
    plan = plan_next(core)
    admission = _admitted(plan)
    assert admission.num_computed_tokens == num_hit_tokens
    assert admission.block_ids.tolist()[: num_hit_tokens // 4] == [1, 2][: num_hit_tokens // 4]
    assert rows(plan) == [(0, len(token_ids) - num_hit_tokens, True)]
    (finished,) = fold(core, plan, 9).finished
    assert finished.num_prefix_hit_tokens == num_hit_tokens
    assert core.state().num_cached_tokens_total == num_hit_tokens


def test_prompt_blocks_are_shared_from_the_next_plan_on_and_not_within_one() -> None:
    core = make_core(max_num_batched_tokens=32)
    core.add(make_request("a", [*PROMPT, 9], max_tokens=2))
    core.add(make_request("b", [*PROMPT, 9], max_tokens=2))
    first = plan_next(core)
    assert [admission.num_computed_tokens for admission in first.admissions] == [0, 0]
    core.add(make_request("c", [*PROMPT, 10], max_tokens=2))
    admission = _admitted(plan_next(core))
    assert admission.num_computed_tokens == 8
    assert admission.block_ids.tolist()[:2] == first.admissions[0].block_ids.tolist()[:2]


@pytest.mark.parametrize(("first_salt", "second_salt"), [("", "a"), ("a", ""), ("a", "b"), ("a", "a\0")])
def test_other_salts_share_nothing(first_salt: str, second_salt: str) -> None:
    core = _core_that_ran(PROMPT, 9, cache_salt=first_salt)
    core.add(make_request("second", [*PROMPT, 9], cache_salt=second_salt))
    assert _admitted(plan_next(core)).num_computed_tokens == 0


def test_the_same_salt_shares() -> None:
    core = _core_that_ran(PROMPT, 9, cache_salt="a")
    core.add(make_request("second", [*PROMPT, 9], cache_salt="a"))
    assert _admitted(plan_next(core)).num_computed_tokens == 8


def test_ids_above_65535_share_nothing_with_their_low_halves() -> None:
    core = _core_that_ran([65_536 + token_id for token_id in PROMPT], 9)
    core.add(make_request("second", [*PROMPT, 9]))
    assert _admitted(plan_next(core)).num_computed_tokens == 0
    core.add(make_request("third", [*(65_536 + token_id for token_id in PROMPT), 9]))
    assert _admitted(plan_next(core)).num_computed_tokens == 8


def test_a_generated_block_is_cached_once_its_last_token_is_computed() -> None:
    """Six prompt tokens and three outputs: the ninth token is sampled, the first eight are computed."""
    core = _core_that_ran(PROMPT[:6], 7, 8, 9)
    core.add(make_request("second", [*PROMPT, 9, 10]))
    assert _admitted(plan_next(core)).num_computed_tokens == 8


def test_a_generated_block_whose_last_token_was_only_sampled_is_not_cached() -> None:
    core = _core_that_ran(PROMPT[:6], 7, 8)
    core.add(make_request("second", [*PROMPT, 9, 10]))
    assert _admitted(plan_next(core)).num_computed_tokens == 4


def test_rows_past_a_stop_token_cache_nothing() -> None:
    """The stop token is the eighth; a row in flight computes it, but is dropped."""
    core = make_core()
    core.add(make_request("first", PROMPT[:7], stop_token_ids=(8,)))
    plans = [plan_next(core), plan_next(core)]
    assert fold(core, plans[0], 8).finished[0].reason is FinishReason.STOP_TOKEN
    fold(core, plans[1], 9)
    core.add(make_request("second", [*PROMPT, 9]))
    assert _admitted(plan_next(core)).num_computed_tokens == 4


def test_blocks_of_an_aborted_prompt_in_flight_are_shared_as_they_will_be_written() -> None:
    core = make_core()
    core.add(make_request("first", [*PROMPT, 9]))
    plan_next(core)
    core.finish("first", FinishReason.ABORT)
    core.add(make_request("second", [*PROMPT, 10]))
    plan = plan_next(core)
    assert plan.released_lanes.tolist() == [0]
    assert _admitted(plan).num_computed_tokens == 8


@pytest.mark.parametrize("num_shared_blocks", range(12))
def test_a_hit_is_found_whole_however_long(num_shared_blocks: int) -> None:
    token_ids = list(range(50))
    limits = {"num_blocks": 32, "max_num_batched_tokens": 64, "max_model_len": 64}
    core = make_core(**limits)
    core.add(make_request("first", token_ids, max_tokens=1))
    fold(core, plan_next(core), 9)
    core.add(make_request("second", [*token_ids[: 4 * num_shared_blocks], *[99] * 5], max_tokens=1))
    assert _admitted(plan_next(core)).num_computed_tokens == 4 * num_shared_blocks


def test_an_idle_workers_plan_does_not_wait_for_hashes_of_blocks_that_no_request_shares() -> None:
    core = make_core()
    first, second = (make_request(name, [*range(i, 16 + i)], max_tokens=2) for i, name in enumerate("ab"))
    core.add(first)
    core.add(second)
    assert [len(request.block_hashes) for request in (first, second)] == [0, 0]
    plan_next(core)
    assert len(first.block_hashes) == 1
    plan_next(core)
    assert len(first.block_hashes) == 4


def test_a_request_that_ends_before_the_next_plan_leaves_its_prompt() -> None:
    core = make_core()
    core.add(make_request("first", PROMPT, max_tokens=2))
    plan_next(core)
    core.finish("first", FinishReason.ABORT)
    core.add(make_request("second", [*PROMPT, 9], max_tokens=1))
    assert _admitted(plan_next(core)).num_computed_tokens == 8
