"""Draws from logits that the kernel which computed them has summed up: those of the reference."""

import pytest
import torch

from kernels.device_sampler import summary_of
from kernels.sampler_tables import SamplerFlavour, allocate_lane_sampling, allocate_sampler_workspace
from tests.kernels.conftest import Place
from tests.kernels.sampler_cases import CHUNK_SIZE, Row, draw, draw_ref

VOCAB_SIZE = 248
"""A multiple of eight: rows are aligned. Neither chunks nor pieces are whole."""


@pytest.fixture
def plain_rows(place: Place) -> torch.Tensor:
    """Return rows in two bytes a number, where the interpreter knows these."""
    if place.dtype == torch.float32 or (place.device == "cpu" and place.dtype == torch.bfloat16):
        pytest.skip("two bytes a number, and no bfloat16 where kernels are interpreted")
    plain_RV = torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 3
    return plain_RV.to(place.device, place.dtype)


@pytest.mark.parametrize(
    "rows",
    [
        [Row(seed=seed, temperature=0.4 * seed) for seed in range(8)],
        [Row(seed=seed, top_p=0.2 + 0.1 * seed) for seed in range(8)],
        [Row(seed=seed, top_k=2 * seed) for seed in range(8)],
        [Row(seed=-seed, min_p=0.1 * seed, top_k=30 * (seed % 2), top_p=0.9) for seed in range(8)],
    ],
    ids=["temperature", "top_p", "top_k", "all"],
)
def test_draws_are_those_of_the_reference(rows: list[Row], plain_rows: torch.Tensor) -> None:
    assert draw(plain_rows, rows, is_summarized=True).token_ids == draw_ref(plain_rows, rows)


@pytest.mark.parametrize(
    ("flavour", "temperature"), [(SamplerFlavour.GREEDY, 3.0), (SamplerFlavour.SAMPLED, 0.0)]
)
def test_greedy_is_the_first_of_the_largest(
    flavour: SamplerFlavour, temperature: float, plain_rows: torch.Tensor
) -> None:
    plain_rows[3, [17, 18, VOCAB_SIZE - 1]] = 50
    plain_rows[4] = -1
    rows = [Row(temperature=temperature)] * 8
    drawn = draw(plain_rows, rows, flavour=flavour, is_summarized=True)
    assert drawn.token_ids == plain_rows.float().argmax(-1).tolist()
    assert drawn.token_ids[3:5] == [17, 0]


@pytest.mark.parametrize(
    ("flavour", "num_rows", "is_there"),
    [
        (SamplerFlavour.GREEDY, 64, True),
        (SamplerFlavour.SAMPLED, 256, True),
        (SamplerFlavour.SAMPLED, 257, False),
        (SamplerFlavour.FULL, 1, False),
    ],
)
def test_edited_and_many_rows_are_not_summed_up(
    flavour: SamplerFlavour, num_rows: int, is_there: bool
) -> None:
    tables, rows_B = allocate_lane_sampling(260, "cpu"), torch.zeros(num_rows, dtype=torch.int32)
    workspace = allocate_sampler_workspace(260, 300, flavour=flavour, device="cpu", chunk_size=CHUNK_SIZE)
    summary = summary_of(rows_B, rows_B, tables, flavour=flavour, workspace=workspace)
    assert (summary is not None) == is_there
