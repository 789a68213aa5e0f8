"""Tokens drawn by kernels from logits on several ranks: on every rank those of all logits on one."""

import pytest
import torch

from kernels import shared_draw
from kernels.sample import SampleInputs, sample_ref
from kernels.sampler_tables import allocate_lane_sampling
from kernels.shared_draw import sample_decode_shared
from tests.kernels.conftest import Place
from tests.thread_ranks import ThreadRank, run_ranks

INF = float("inf")
RANK_IDS = 384
NUM_IDS = 2 * RANK_IDS + 250
"""Of three ranks; the last has fewer."""
LANES = [3, 1, 0, 2, 4, -1]
SEEDS = [7, -1, 2**62, 0, 12]


def make_logits(place: Place) -> torch.Tensor:
    """Return one plain row, one of ties across ranks, and some of numbers that compare badly."""
    logits_RV = torch.randn(6, NUM_IDS, generator=torch.Generator().manual_seed(0))
    logits_RV[1] = 0
    logits_RV[1, [383, 384, 849]] = 2
    logits_RV[2] = -INF
    logits_RV[3] = float("nan")
    logits_RV[3, 700] = -3
    logits_RV[4, 600] = INF
    return logits_RV.to(place.device, place.dtype)


def draw(
    rank: ThreadRank, logits_RV: torch.Tensor, temperatures: list[float], *, is_drawn: bool
) -> tuple[list[int], torch.Tensor]:
    """Draw the tokens as one of the ranks; return them and the token pool."""
    first_id = RANK_IDS * rank.rank
    device = logits_RV.device
    lanes_B = torch.tensor(LANES, dtype=torch.int32, device=device)
    positions_B = torch.arange(6, dtype=torch.int32, device=device)
    token_pool_LP = torch.full((5, 8), -9, dtype=torch.int32, device=device)
    out_B = torch.full((6,), -9, dtype=torch.int32, device=device)
    tables = allocate_lane_sampling(5, device)
    for row, lane in enumerate(LANES[:-1]):
        tables.temperature_L[lane], tables.seed_L[lane] = temperatures[row], SEEDS[row]
    sample_decode_shared(
        logits_RV[:, first_id : first_id + RANK_IDS],
        lanes_B,
        positions_B,
        tables,
        token_pool_LP,
        out_B,
        first_id=first_id,
        all_gather=rank.all_gather,
        is_drawn=is_drawn,
    )
    return out_B.tolist(), token_pool_LP


@pytest.mark.parametrize("is_drawn", [False, True])
@pytest.mark.parametrize("piece", [128, 4096])
def test_every_rank_takes_the_first_of_the_largest(
    monkeypatch: pytest.MonkeyPatch, one_place: Place, piece: int, is_drawn: bool
) -> None:
    monkeypatch.setattr(shared_draw, "PIECE", piece)
    logits_RV = make_logits(one_place)
    # Where nothing may be drawn by noise, temperatures mean nothing.
    temperatures = [0.0 if is_drawn else 5.0] * 5
    expected = [int(logits_RV[0].argmax()), 383, 0, 700, 600, -9]
    for tokens, token_pool_LP in run_ranks(
        3, lambda rank: draw(rank, logits_RV, temperatures, is_drawn=is_drawn)
    ):
        assert tokens == expected
        written = token_pool_LP.new_full((5, 8), -9)
        for row, lane in enumerate(LANES[:-1]):
            written[lane, row + 1] = expected[row]
        assert torch.equal(token_pool_LP, written)


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_every_rank_draws_the_reference_s_token(
    monkeypatch: pytest.MonkeyPatch, one_place: Place, scale: float
) -> None:
    monkeypatch.setattr(shared_draw, "PIECE", 128)
    generator = torch.Generator().manual_seed(3)
    logits_RV = (torch.randn(6, NUM_IDS, generator=generator) * scale).to(one_place.device, one_place.dtype)
    temperatures = [0.7, 0.0, 1e-3, 3.0, 1.0]
    inputs = SampleInputs(
        temperature_R=torch.tensor(temperatures),
        top_k_R=torch.zeros(5, dtype=torch.int32),
        top_p_R=torch.ones(5),
        min_p_R=torch.zeros(5),
        seed_R=torch.tensor(SEEDS),
        position_R=torch.arange(1, 6),
    )
    expected = sample_ref(logits_RV[:5].float().cpu(), inputs).tolist()
    for tokens, _ in run_ranks(3, lambda rank: draw(rank, logits_RV, temperatures, is_drawn=True)):
        assert tokens == [*expected, -9]
    assert len({token // RANK_IDS for token in expected}) > 1


def test_a_row_without_a_number_has_a_token_of_the_vocabulary(one_place: Place) -> None:
    # Of most groups of a piece no rank has an id.
    logits_RV = make_logits(one_place).fill_(-INF)
    for tokens, _ in run_ranks(3, lambda rank: draw(rank, logits_RV, [1.0] * 5, is_drawn=True)):
        assert all(0 <= token < NUM_IDS for token in tokens[:-1])
        assert len(set(tokens[:-1])) > 1
