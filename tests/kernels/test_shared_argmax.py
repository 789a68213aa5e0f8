"""The likeliest token of logits on several ranks, by kernels: the first of the largest, on every rank."""

import pytest
import torch

from kernels import shared_argmax
from kernels.shared_argmax import sample_greedy_shared
from tests.kernels.conftest import Place
from tests.thread_ranks import ThreadRank, run_ranks

INF = float("inf")
RANK_IDS = 300
NUM_IDS = 2 * RANK_IDS + 250
"""Of three ranks; the last has fewer."""


def make_logits(place: Place) -> torch.Tensor:
    """Return one plain row, one of ties across ranks, and some of numbers that compare badly."""
    logits_RV = torch.randn(6, NUM_IDS, generator=torch.Generator().manual_seed(0))
    logits_RV[1] = 0
    logits_RV[1, [299, 300, 849]] = 2
    logits_RV[2] = -INF
    logits_RV[3] = float("nan")
    logits_RV[3, 700] = -3
    logits_RV[4, 600] = INF
    return logits_RV.to(place.device, place.dtype)


def take(rank: ThreadRank, logits_RV: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """Take the tokens as one of the ranks; return them and the token pool."""
    first_id = RANK_IDS * rank.rank
    device = logits_RV.device
    lanes_B = torch.tensor([3, 1, 0, 2, 4, -1], dtype=torch.int32, device=device)
    positions_B = torch.arange(6, dtype=torch.int32, device=device)
    token_pool_LP = torch.full((5, 8), -9, dtype=torch.int32, device=device)
    out_B = torch.full((6,), -9, dtype=torch.int32, device=device)
    sample_greedy_shared(
        logits_RV[:, first_id : first_id + RANK_IDS],
        lanes_B,
        positions_B,
        token_pool_LP,
        out_B,
        first_id=first_id,
        all_gather=rank.all_gather,
    )
    return out_B.tolist(), token_pool_LP


@pytest.mark.parametrize("piece", [64, 4096])
def test_every_rank_takes_the_first_of_the_largest(
    monkeypatch: pytest.MonkeyPatch, one_place: Place, piece: int
) -> None:
    monkeypatch.setattr(shared_argmax, "PIECE", piece)
    logits_RV = make_logits(one_place)
    expected = [int(logits_RV[0].argmax()), 299, 0, 700, 600, -9]
    for tokens, token_pool_LP in run_ranks(3, lambda rank: take(rank, logits_RV)):
        assert tokens == expected
        written = token_pool_LP.new_full((5, 8), -9)
        for row, lane in enumerate((3, 1, 0, 2, 4)):
            written[lane, row + 1] = expected[row]
        assert torch.equal(token_pool_LP, written)
