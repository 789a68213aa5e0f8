"""Which way a message is summed, and gathers as sums. The kernels themselves need two GPUs: tests/gpu."""

import pytest
import torch

from tests.thread_ranks import run_ranks
from worker_svc.tp.symmetric_ranks import Way, choose_way, gather_as_sum

KIB = 1024


@pytest.mark.parametrize(
    ("size", "num_kib", "way"),
    [
        (2, 1024, Way.PUSHED),
        (2, 256 * 1024, Way.PUSHED),
        (2, 256 * 1024 + 1, Way.NCCL),
        (4, 512, Way.PUSHED),
        (4, 513, Way.TWO_SHOT),
        (8, 256, Way.PUSHED),
        (8, 2048, Way.TWO_SHOT),
        (8, 2049, Way.NCCL),
    ],
)
def test_larger_messages_go_other_ways(size: int, num_kib: int, way: Way) -> None:
    assert choose_way(num_kib * KIB, size) is way


def test_a_gather_as_sum_keeps_every_number() -> None:
    inf, nan = float("inf"), float("nan")
    own = [torch.tensor([[1.5, 7.0], [-inf, 16777215.0]]), torch.tensor([[nan, 3.0], [inf, 1e-40]])]
    for gathered in run_ranks(2, lambda rank: gather_as_sum(own[rank.rank], rank)):
        assert torch.equal(
            gathered.nan_to_num(nan=-7.0, posinf=inf, neginf=-inf),
            torch.stack(own).nan_to_num(nan=-7.0, posinf=inf, neginf=-inf),
        )
