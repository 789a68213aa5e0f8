"""A request that comes with output from before, by hand (blocks of 4)."""

import numpy as np
import pytest

from scheduler_svc.core.types import FinishReason, Int32Array
from scheduler_svc.errors import InvalidRequestError
from tests.unit.core_steps import fold, make_core, make_request, plan_next, rows


def output(*token_ids: int) -> Int32Array:
    return np.array(token_ids, np.int32)


def test_known_output_is_computed_with_the_prompt_and_only_new_tokens_are_told() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2, 3], max_tokens=5, known_output_token_ids=output(50, 51)))
    plan = plan_next(core)
    (admission,) = plan.admissions
    assert admission.token_ids.tolist() == [1, 2, 3, 50, 51]
    assert (admission.num_prompt_tokens, admission.max_total_tokens) == (3, 8)
    assert rows(plan) == [(0, 5, True)]
    assert fold(core, plan, 52).token_ids.tolist() == [52]
    assert fold(core, plan_next(core), 53).finished == ()
    (finished,) = fold(core, plan_next(core), 54).finished
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.LENGTH, 5)
    assert core.state().num_output_tokens_total == 3
    assert core.state().num_prompt_tokens_total == 3


def test_known_output_counts_for_min_tokens() -> None:
    core = make_core()
    for name, min_tokens in (("stops", 2), ("goes on", 3)):
        core.add(
            make_request(
                name,
                [1],
                max_tokens=8,
                stop_token_ids=(9,),
                min_tokens=min_tokens,
                known_output_token_ids=output(50, 51),
            )
        )
    (finished,) = fold(core, plan_next(core), 9, 9).finished
    assert (finished.request_id, finished.reason) == ("stops", FinishReason.STOP_TOKEN)
    assert finished.num_output_tokens == 3


def test_the_prefix_cache_serves_known_output_but_tells_prompt_tokens_only() -> None:
    core = make_core()
    core.add(make_request("a", [1, 2, 3], max_tokens=6))
    for token_id in range(50, 56):
        fold(core, plan_next(core), token_id)
    core.add(
        make_request("b", [1, 2, 3], max_tokens=8, known_output_token_ids=output(50, 51, 52, 53, 54, 55))
    )
    plan = plan_next(core)
    assert plan.admissions[0].num_computed_tokens == 8
    finished = core.finish("b", FinishReason.ABORT)
    assert finished is not None
    assert (finished.num_output_tokens, finished.num_prefix_hit_tokens) == (6, 3)


@pytest.mark.parametrize("max_tokens", [2, None])
def test_known_output_that_leaves_no_room_is_refused(max_tokens: int | None) -> None:
    core = make_core(max_model_len=5)
    with pytest.raises(
        InvalidRequestError,
        match=r"^5 tokens of prompt and output are known already, but must be fewer than 5, the most that",
    ):
        core.add(make_request("a", [1, 2, 3], max_tokens=max_tokens, known_output_token_ids=output(50, 51)))
    assert core.schedule() is None


def test_known_output_survives_the_end_of_an_epoch() -> None:
    core = make_core()
    core.add(make_request("a", [1], max_tokens=8, known_output_token_ids=output(50)))
    fold(core, plan_next(core), 51)
    core.reset(core.limits)
    assert plan_next(core).admissions[0].token_ids.tolist() == [1, 50, 51]
