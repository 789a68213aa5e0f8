"""Greedy draws and draws from the whole softmax by kernels, against the reference and against counts."""

import pytest
import torch

from kernels.sampler_tables import SamplerFlavour
from tests.kernels.conftest import Place
from tests.kernels.sampler_cases import CHUNK_SIZE, Row, draw, draw_ref

INF = float("inf")


def _logits(num_rows: int, vocab_size: int, place: Place, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits_RV = torch.randn(num_rows, vocab_size, generator=generator) * 3
    return logits_RV.to(place.device, place.dtype)


@pytest.mark.parametrize("flavour", list(SamplerFlavour))
@pytest.mark.parametrize("vocab_size", [64, 301])
def test_greedy_is_the_first_of_the_largest(flavour: SamplerFlavour, vocab_size: int, place: Place) -> None:
    logits_RV = _logits(4, vocab_size, place)
    logits_RV[1, [5, 63, vocab_size - 1]] = 20
    logits_RV[2] = 1
    logits_RV[3] = -INF
    rows = [Row(temperature=0.0, top_k=3, top_p=0.1, seed=row) for row in range(4)]
    expected = [int(logits_RV[0].argmax()), 5, 0, 0]
    assert draw(logits_RV, rows, flavour=flavour).token_ids == expected


def test_flavour_greedy_ignores_temperature(place: Place) -> None:
    logits_RV = _logits(2, 300, place)
    rows = [Row(temperature=50.0), Row(temperature=50.0, seed=1)]
    drawn = draw(logits_RV, rows, flavour=SamplerFlavour.GREEDY)
    assert drawn.token_ids == logits_RV.float().argmax(-1).tolist()


@pytest.mark.parametrize("vocab_size", [33, 300])
def test_draws_are_those_of_the_reference(vocab_size: int, place: Place) -> None:
    temperatures = [0.0, 1e-40, 0.01, 0.3, 1.0, 1.0, 2.5, 100.0]
    rows = [
        Row(temperature=temperature, seed=index * -(1 << 60) + 5, position=index * 17)
        for index, temperature in enumerate(temperatures)
    ]
    logits_RV = _logits(len(rows), vocab_size, place)
    assert draw(logits_RV, rows).token_ids == draw_ref(logits_RV, rows)


def test_equal_maxima_are_drawn_between_however_small_the_temperature(one_place: Place) -> None:
    logits_RV = torch.full((16, 300), -5.0, device=one_place.device, dtype=one_place.dtype)
    best = [3, 40, 45, 170, 260, 299]
    logits_RV[:, best] = 50
    rows = [Row(temperature=1e-4 * 0.1**row, seed=row) for row in range(len(logits_RV))]
    tokens = draw(logits_RV, rows).token_ids
    assert tokens == draw_ref(logits_RV, rows)
    assert set(tokens) <= set(best)
    assert len({token // CHUNK_SIZE for token in tokens}) > 2


def test_a_chunks_size_changes_nothing(one_place: Place) -> None:
    rows = [Row(temperature=0.8, top_p=0.7, seed=seed) for seed in range(3)]
    logits_RV = _logits(3, 300, one_place)
    expected = draw_ref(logits_RV, rows)
    for chunk_size in (16, 128, 512):
        assert draw(logits_RV, rows, chunk_size=chunk_size).token_ids == expected


def test_a_row_is_the_same_alone_and_in_any_batch(one_place: Place) -> None:
    logits_RV = _logits(5, 200, one_place)
    rows = [
        Row(temperature=0.0),
        Row(temperature=0.9, seed=1, position=4),
        Row(temperature=0.7, top_k=5, seed=2, position=90),
        Row(temperature=1.2, top_p=0.6, seed=3, position=33),
        Row(temperature=1.0, min_p=0.2, seed=4, position=0),
    ]
    batched = draw(logits_RV, rows).token_ids
    assert draw(logits_RV.flip(0), rows[::-1]).token_ids == batched[::-1]
    for index, row in enumerate(rows):
        assert draw(logits_RV[index : index + 1], [row]).token_ids == [batched[index]]


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_infinite_logits_and_nan_harm_only_their_row(top_p: float, one_place: Place) -> None:
    logits_RV = _logits(6, 300, one_place)
    rows = [Row(seed=seed, top_p=top_p) for seed in range(6)]
    expected = draw_ref(logits_RV, rows)
    logits_RV[1] = float("nan")
    logits_RV[2, ::2] = float("nan")
    logits_RV[3] = -INF
    logits_RV[4, :299] = -INF
    drawn = draw(logits_RV, rows).token_ids
    assert (drawn[0], drawn[5]) == (expected[0], expected[5])
    assert drawn[4] == 299
    assert drawn[2] % 2 == 1
    assert all(0 <= token < 300 for token in drawn)


def test_draws_follow_the_softmax(one_place: Place) -> None:
    num_draws = 80
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    logits_RV = weights.log().expand(num_draws, -1).to(one_place.device, one_place.dtype).contiguous()
    rows = [Row(seed=9, position=position) for position in range(num_draws)]
    drawn = draw(logits_RV, rows, chunk_size=4)
    counts = torch.bincount(torch.tensor(drawn.token_ids), minlength=4)
    expected = weights / weights.sum() * num_draws
    # 3 degrees of freedom: above 16.3 in one of a thousand seeds.
    assert ((counts - expected) ** 2 / expected).sum() < 16.3
