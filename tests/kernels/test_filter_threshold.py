"""top_k, top_p and min_p by kernels: the reference's tokens, ties, and rows too wide to be ranked."""

import pytest
import torch

from tests.kernels.conftest import Place
from tests.kernels.sampler_cases import Row, draw, draw_ref

NUM_SEEDS = 3
"""A draw shows a wrongly kept token only where it wins."""


def _logits(num_rows: int, vocab_size: int, place: Place, *, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    logits_RV = torch.randn(num_rows, vocab_size, generator=generator) * scale
    return logits_RV.to(place.device, place.dtype)


@pytest.mark.parametrize(
    ("row", "is_ranked"),
    [
        (Row(top_k=1), True),
        (Row(top_k=5, temperature=3.0), True),
        (Row(top_k=10, temperature=2.0), True),  # as many as there are chunks
        (Row(top_k=11, temperature=2.0), True),  # more: by bisection
        (Row(top_k=60, temperature=9.0), True),
        (Row(top_k=150, temperature=9.0), False),  # more than can be ranked
        (Row(top_k=300), False),  # all there are
        (Row(top_k=5000), False),
        (Row(top_p=0.95), False),
        (Row(top_p=0.5, temperature=2.0), False),
        (Row(top_p=0.05, temperature=3.0), False),
        (Row(top_p=1e-6), False),
        (Row(min_p=0.3, temperature=3.0), True),
        (Row(min_p=1.0, temperature=3.0), True),
        (Row(min_p=1e-4, temperature=5.0), False),
        (Row(top_k=8, top_p=0.6, temperature=3.0), True),
        (Row(top_k=50, top_p=0.3, temperature=5.0), True),
        (Row(top_k=150, top_p=0.3, temperature=5.0), False),
        (Row(top_k=20, min_p=0.4, temperature=4.0), True),
        (Row(top_p=0.5, min_p=0.2, temperature=2.0), True),
        (Row(top_k=30, top_p=0.8, min_p=0.05, temperature=4.0), True),
    ],
    ids=str,
)
def test_filters_draw_what_the_reference_draws(row: Row, is_ranked: bool, place: Place) -> None:
    logits_RV = _logits(NUM_SEEDS, 300, place)
    rows = [Row(**{**vars(row), "seed": seed, "position": 3 * seed}) for seed in range(NUM_SEEDS)]
    drawn = draw(logits_RV, rows)
    assert drawn.token_ids == draw_ref(logits_RV, rows)
    assert drawn.is_ranked == [is_ranked] * NUM_SEEDS


@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("top_k", [3, 9, 70])
def test_more_ties_than_candidates_are_all_kept(top_k: int, top_p: float, place: Place) -> None:
    # Two tokens on top, then 90 that tie; the others, a little lower, may never be drawn.
    logits_RV = torch.zeros(2, 300, device=place.device, dtype=place.dtype)
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
