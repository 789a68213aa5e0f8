"""top_k, top_p and min_p by kernels: the reference's tokens, ties, and rows too wide to be ranked."""

import pytest
import torch

from kernels.counter_random import gumbel_noise_ref
from kernels.sample import SampleInputs, lowest_kept_ref
from tests.kernels.conftest import Place
from tests.kernels.sampler_cases import Row, draw, draw_ref

VOCAB_SIZE = 300
NUM_SEEDS_TRIED = 4000
POSITION = 7


def _name(row: Row) -> str:
    return f"k{row.top_k}-p{row.top_p:g}-min{row.min_p:g}-t{row.temperature:g}"


def _border_seeds(logits_V: torch.Tensor, row: Row) -> list[int]:
    """Return a seed with which the last token kept wins, and one with which the first one dropped would."""
    scaled_V = (logits_V.float().cpu() - logits_V.float().amax().cpu()) / row.temperature
    lowest = lowest_kept_ref(
        scaled_V[None],
        SampleInputs(
            temperature_R=torch.tensor([row.temperature]),
            top_k_R=torch.tensor([row.top_k]),
            top_p_R=torch.tensor([row.top_p]),
            min_p_R=torch.tensor([row.min_p]),
            seed_R=torch.zeros(1, dtype=torch.int64),
            position_R=torch.zeros(1, dtype=torch.int64),
        ),
    )
    dropped_V = scaled_V < lowest
    if not dropped_V.any():
        return [0, 1]
    last_kept = scaled_V.masked_fill(dropped_V, float("inf")).amin()
    first_dropped = scaled_V.masked_fill(~dropped_V, float("-inf")).amax()
    seeds = torch.arange(NUM_SEEDS_TRIED)
    values_RV = scaled_V + gumbel_noise_ref(seeds, torch.full_like(seeds, POSITION + 1), VOCAB_SIZE)
    won_R = scaled_V[values_RV.masked_fill(scaled_V < first_dropped, float("-inf")).argmax(-1)]
    is_last_kept_R, is_first_dropped_R = won_R == last_kept, won_R == first_dropped
    assert is_last_kept_R.any()
    assert is_first_dropped_R.any()
    return [int(is_last_kept_R.int().argmax()), int(is_first_dropped_R.int().argmax())]


@pytest.mark.parametrize(
    ("row", "is_ranked"),
    [
        (Row(top_k=1, temperature=2.0), True),
        (Row(top_k=5, temperature=3.0), True),
        (Row(top_k=10, temperature=2.0), True),  # as many as there are chunks
        (Row(top_k=11, temperature=2.0), True),  # more: by bisection
        (Row(top_k=60, temperature=9.0), True),
        (Row(top_k=150, temperature=9.0), False),  # more than can be ranked
        (Row(top_k=300), False),  # all there are
        (Row(top_k=5000), False),
        (Row(top_p=0.95, temperature=9.0), False),
        (Row(top_p=0.5, temperature=5.0), False),
        (Row(top_p=0.05, temperature=6.0), False),
        (Row(top_p=1e-6, temperature=2.0), False),
        (Row(min_p=0.3, temperature=3.0), True),
        (Row(min_p=1.0, temperature=3.0), True),
        (Row(min_p=0.02, temperature=4.0), False),
        (Row(top_k=8, top_p=0.6, temperature=3.0), True),
        (Row(top_k=50, top_p=0.3, temperature=5.0), True),
        (Row(top_k=150, top_p=0.3, temperature=5.0), False),
        (Row(top_k=20, min_p=0.4, temperature=4.0), True),
        (Row(top_p=0.5, min_p=0.2, temperature=2.0), True),
        (Row(top_k=30, top_p=0.8, min_p=0.05, temperature=4.0), True),
    ],
    ids=lambda value: _name(value) if isinstance(value, Row) else str(value),
)
def test_the_last_kept_is_drawn_and_the_first_dropped_is_not(
    row: Row, is_ranked: bool, one_place: Place
) -> None:
    logits_V = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
    logits_V = logits_V.to(one_place.device, one_place.dtype)
    seeds = _border_seeds(logits_V, row)
    rows = [Row(**{**vars(row), "seed": seed, "position": POSITION}) for seed in seeds]
    logits_RV = logits_V.expand(len(rows), -1).contiguous()
    drawn = draw(logits_RV, rows)
    assert drawn.token_ids == draw_ref(logits_RV, rows)
    assert drawn.is_ranked == [is_ranked] * len(rows)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("top_k", [3, 9, 70])
def test_more_ties_than_candidates_are_all_kept(top_k: int, top_p: float, one_place: Place) -> None:
    # Two tokens on top, then 90 that tie; the others, a little lower, may never be drawn.
    logits_RV = torch.zeros(2, 300, device=one_place.device, dtype=one_place.dtype)
    logits_RV[:, 100:190] = 1
    logits_RV[:, [150, 250]] = 2
    rows = [Row(temperature=2.0, top_k=top_k, top_p=top_p, seed=seed) for seed in range(2)]
    drawn = draw(logits_RV, rows)
    assert drawn.is_ranked == [False] * 2
    assert drawn.token_ids == draw_ref(logits_RV, rows)
    assert all(100 <= token < 190 or token == 250 for token in drawn.token_ids)


def test_equal_logits_are_all_kept(place: Place) -> None:
    logits_RV = torch.ones(3, 300, device=place.device, dtype=place.dtype)
    rows = [Row(top_k=4, seed=1), Row(top_p=0.1, seed=2), Row(min_p=1.0, seed=3)]
    assert draw(logits_RV, rows).token_ids == draw_ref(logits_RV, rows)


def test_masked_logits_are_not_kept_however_wide_the_filters(place: Place) -> None:
    logits_RV = torch.full((3, 300), float("-inf"), device=place.device, dtype=place.dtype)
    logits_RV[:, [7, 200]] = torch.tensor([1.0, 1.5], device=place.device, dtype=place.dtype)
    rows = [
        Row(top_k=50, temperature=100.0, seed=1),
        Row(top_k=2, temperature=100.0, seed=2),
        Row(top_p=0.99, temperature=100.0, seed=3),
    ]
    drawn = draw(logits_RV, rows)
    assert drawn.token_ids == draw_ref(logits_RV, rows)
    assert set(drawn.token_ids) <= {7, 200}
