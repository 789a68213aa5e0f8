"""The sampler's reference: kept sets by hand, the distribution drawn from, and what must not matter."""

import math
from typing import Any

import pytest
import torch

from kernels.logit_edits import LogitEntries, PenaltyInputs
from kernels.sample import SampleInputs, logprobs_ref, lowest_kept_ref, sample_ref

INF = float("inf")


def _inputs(num_rows: int, **values: Any) -> SampleInputs:
    """Inputs of equal rows, or of one value a row where a list is given."""

    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        value = values.pop(name, default)
        return torch.tensor(value if isinstance(value, list) else [value] * num_rows, dtype=dtype)

    return SampleInputs(
        temperature_R=column("temperature", 1.0, torch.float32),
        top_k_R=column("top_k", 0, torch.int32),
        top_p_R=column("top_p", 1.0, torch.float32),
        min_p_R=column("min_p", 0.0, torch.float32),
        seed_R=column("seed", 0, torch.int64),
        position_R=column("position", 0, torch.int64),
        **values,
    )


def _kept(probabilities: list[float], **values: Any) -> list[int]:
    """The ids that survive the filters."""
    logits_RV = torch.tensor([probabilities]).log()
    scaled_RV = logits_RV - logits_RV.amax(-1, keepdim=True)
    lowest_R = lowest_kept_ref(scaled_RV, _inputs(1, **values))
    return (scaled_RV[0] >= lowest_R[0]).nonzero().flatten().tolist()


@pytest.mark.parametrize("is_greedy", [True, False])
def test_greedy_is_the_first_of_the_largest(is_greedy: bool) -> None:
    logits_RV = torch.tensor([[1.0, 3.0, 3.0, 2.0], [-INF, -5.0, -5.0, -5.0], [0.0, 0.0, 0.0, 0.0]])
    inputs = _inputs(3, temperature=0.0, is_greedy=is_greedy)
    assert sample_ref(logits_RV, inputs).tolist() == [1, 1, 0]


def test_greedy_ignores_filters_and_seeds_of_its_row() -> None:
    logits_RV = torch.randn(4, 500, generator=torch.Generator().manual_seed(1))
    inputs = _inputs(4, temperature=0.0, top_k=[1, 2, 0, 9], top_p=0.5, min_p=0.1, seed=[1, 2, 3, 4])
    assert sample_ref(logits_RV, inputs).tolist() == logits_RV.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-3])
def test_smallest_temperatures_are_greedy(temperature: float) -> None:
    logits_RV = torch.tensor([[10.0, 30.0, 29.0, 30.0 - 1e-5]])
    assert sample_ref(logits_RV, _inputs(1, temperature=temperature, seed=5)).tolist() == [1]


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [(0, [0, 1, 2, 3, 4]), (1, [3]), (2, [1, 3]), (3, [0, 1, 3, 4]), (99, [0, 1, 2, 3, 4])],
)
def test_top_k_keeps_the_likeliest_and_their_ties(top_k: int, expected: list[int]) -> None:
    assert _kept([0.15, 0.2, 0.1, 0.4, 0.15], top_k=top_k) == expected


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.01, [1]), (0.49, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [1, 2, 3]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, expected: list[int]) -> None:
    assert _kept([0.05, 0.5, 0.15, 0.3], top_p=top_p) == expected


@pytest.mark.parametrize(
    ("min_p", "expected"), [(0.0, [0, 1, 2, 3]), (0.2, [1, 2, 3]), (0.5, [1, 3]), (1.0, [1])]
)
def test_min_p_counts_from_the_likeliest(min_p: float, expected: list[int]) -> None:
    assert _kept([0.05, 0.5, 0.15, 0.3], min_p=min_p) == expected


def test_top_p_counts_within_top_k() -> None:
    # Of the two kept by top_k the first has 0.5 / 0.8 = 0.625.
    assert _kept([0.05, 0.5, 0.15, 0.3], top_k=2, top_p=0.62) == [1]
    assert _kept([0.05, 0.5, 0.15, 0.3], top_k=2, top_p=0.63) == [1, 3]


@pytest.mark.parametrize("num_kept", [255, 256, 257, 4095, 4096, 4097, 5999])
def test_top_p_finds_its_border_however_many_it_keeps(num_kept: int) -> None:
    # Linear weights: the sum of the n likeliest is known exactly.
    weights = torch.arange(6000, 0, -1, dtype=torch.float64)
    share = float((weights[:num_kept].sum() - weights[num_kept - 1] / 2) / weights.sum())
    order = torch.randperm(6000, generator=torch.Generator().manual_seed(0))
    kept = _kept(weights.float()[order].tolist(), top_p=share)
    # float32 sums of thousands may move the border by a token or two.
    assert abs(len(kept) - num_kept) <= 2


def test_top_k_finds_its_border_however_many_it_keeps() -> None:
    weights = torch.arange(6000, 0, -1).float().tolist()
    for top_k in (255, 256, 257, 4096, 4097, 5999):
        assert len(_kept(weights, top_k=top_k)) == top_k


def test_draws_follow_the_softmax() -> None:
    num_draws = 40000
    logits_V = torch.tensor([0.0, 1.0, 2.0, -1.0, -INF])
    inputs = _inputs(num_draws, temperature=0.7, seed=11, position=list(range(num_draws)))
    drawn = sample_ref(logits_V.expand(num_draws, -1), inputs)
    counts = torch.bincount(drawn, minlength=5)
    expected = (logits_V / 0.7).softmax(-1) * num_draws
    assert counts[4] == 0
    chi_square = ((counts - expected)[:4] ** 2 / expected[:4]).sum()
    # 3 degrees of freedom: above 16.3 in one of a thousand seeds.
    assert chi_square < 16.3


@pytest.mark.parametrize("group_size", [2, 4])
def test_draws_follow_the_softmax_over_groups_and_within_them(group_size: int) -> None:
    num_draws = 40000
    logits_V = torch.tensor([0.0, 1.0, 2.0, -1.0, -INF, 1.5, -0.5])
    inputs = _inputs(num_draws, temperature=0.7, seed=12, position=list(range(num_draws)), has_filters=False)
    drawn = sample_ref(logits_V.expand(num_draws, -1), inputs, group_size=group_size)
    counts = torch.bincount(drawn, minlength=7)
    expected = (logits_V / 0.7).softmax(-1) * num_draws
    assert counts[4] == 0
    is_possible = expected > 0
    chi_square = ((counts - expected)[is_possible] ** 2 / expected[is_possible]).sum()
    # 5 degrees of freedom: above 20.5 in one of a thousand seeds.
    assert chi_square < 20.5


def test_draws_stay_inside_the_kept_set_and_follow_its_share() -> None:
    num_draws = 20000
    logits_V = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    inputs = _inputs(num_draws, top_k=2, seed=3, position=list(range(num_draws)))
    counts = torch.bincount(sample_ref(logits_V.expand(num_draws, -1), inputs), minlength=4).tolist()
    assert counts[2:] == [0, 0]
    expected = num_draws * 0.625
    assert abs(counts[0] - expected) < 4 * math.sqrt(expected * 0.375)


def test_seeds_draw_differently_and_each_the_same_again() -> None:
    logits_RV = torch.zeros(1, 1000).expand(50, -1)
    first = sample_ref(logits_RV, _inputs(50, seed=list(range(50))))
    again = sample_ref(logits_RV, _inputs(50, seed=list(range(50))))
    assert first.tolist() == again.tolist()
    assert len(set(first.tolist())) > 40


def _mixed_inputs() -> dict[str, list[Any]]:
    return {
        "temperature": [0.0, 1.0, 0.5, 1.3, 1.0, 0.8],
        "top_k": [0, 0, 40, 0, 3000, 0],
        "top_p": [1.0, 1.0, 0.9, 0.95, 1.0, 0.99],
        "min_p": [0.0, 0.0, 0.0, 0.02, 0.0, 0.0],
        "seed": [1, 2, 3, 4, 5, -6],
        "position": [10, 20, 30, 40, 50, 60],
    }


def test_a_row_is_the_same_alone_and_in_any_batch() -> None:
    logits_RV = torch.randn(6, 5000, generator=torch.Generator().manual_seed(2)) * 2
    values = _mixed_inputs()
    batched = sample_ref(logits_RV, _inputs(6, **values)).tolist()
    backwards = {name: column[::-1] for name, column in values.items()}
    assert sample_ref(logits_RV.flip(0), _inputs(6, **backwards)).tolist() == batched[::-1]
    for row in range(6):
        alone = {name: column[row : row + 1] for name, column in values.items()}
        assert sample_ref(logits_RV[row : row + 1], _inputs(1, **alone)).tolist() == [batched[row]]


def test_has_filters_changes_nothing_where_no_row_filters() -> None:
    logits_RV = torch.randn(8, 3000, generator=torch.Generator().manual_seed(4))
    seeds = list(range(8))
    with_check = sample_ref(logits_RV, _inputs(8, seed=seeds, has_filters=True))
    without = sample_ref(logits_RV, _inputs(8, seed=seeds, has_filters=False))
    assert with_check.tolist() == without.tolist()


def test_a_row_of_nans_does_not_reach_its_neighbours() -> None:
    logits_RV = torch.randn(3, 400, generator=torch.Generator().manual_seed(5))
    inputs = _inputs(3, top_k=[5, 5, 5], top_p=0.9, seed=[1, 2, 3])
    expected = sample_ref(logits_RV, inputs).tolist()
    logits_RV[1] = float("nan")
    drawn = sample_ref(logits_RV, inputs).tolist()
    assert (drawn[0], drawn[2]) == (expected[0], expected[2])
    assert 0 <= drawn[1] < 400


def test_edits_come_in_order_and_leave_the_logits_alone() -> None:
    logits_RV = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    one = torch.tensor([0])
    inputs = _inputs(
        1,
        temperature=0.0,
        biases=LogitEntries(rows_X=one, token_ids_X=torch.tensor([3]), values_X=torch.tensor([12.0])),
        penalties=PenaltyInputs(
            rows_Q=one,
            history_QW=torch.tensor([[3]]),
            num_known_Q=torch.tensor([1]),
            num_prompt_Q=torch.tensor([1]),
            presence_Q=torch.tensor([0.0]),
            frequency_Q=torch.tensor([0.0]),
            repetition_Q=torch.tensor([8.0]),
        ),
        masks=LogitEntries(rows_X=one, token_ids_X=torch.tensor([2]), values_X=torch.tensor([-INF])),
    )
    # 12 / 8 = 1.5 is below logit 1, 2.0; without the penalty 3 would win, without the mask 2.
    assert sample_ref(logits_RV, inputs).tolist() == [1]
    assert logits_RV.tolist() == [[1.0, 2.0, 3.0, 0.0]]


def test_masked_ids_are_never_drawn() -> None:
    masks = LogitEntries(
        rows_X=torch.arange(2000).repeat_interleave(2),
        token_ids_X=torch.tensor([0, 2]).repeat(2000),
        values_X=torch.full((4000,), -INF),
    )
    inputs = _inputs(2000, temperature=50.0, position=list(range(2000)), masks=masks)
    drawn = sample_ref(torch.zeros(2000, 4), inputs)
    assert set(drawn.tolist()) == {1, 3}


def test_logprobs_are_of_the_raw_distribution_the_drawn_token_first() -> None:
    logits_RV = torch.tensor([[0.1, 0.6, 0.3], [0.25, 0.25, 0.5]]).log() + 7
    ids, values = logprobs_ref(logits_RV, torch.tensor([0, 2]), 2)
    assert ids[0].tolist() == [0, 1, 2]
    assert ids[1, 0] == 2
    assert ids[1, 1] == 2
    torch.testing.assert_close(values[0].exp(), torch.tensor([0.1, 0.6, 0.3]))
    torch.testing.assert_close(values[1].exp(), torch.tensor([0.5, 0.5, 0.25]))


def test_logprobs_of_the_drawn_token_alone() -> None:
    ids, values = logprobs_ref(torch.zeros(1, 4), torch.tensor([3]), 0)
    assert ids.tolist() == [[3]]
    torch.testing.assert_close(values, torch.full((1, 1), math.log(0.25)))
