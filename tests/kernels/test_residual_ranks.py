"""The residual stream of a rank that leaves its sum to others: whose sums of squares the next norm takes."""

from dataclasses import fields

import pytest
import torch

from kernels.row_squares import sum_squares_ref
from kernels.small_batch_ref import norm_linear_ref
from kernels.tiled_config import make_projection_workspace
from model.projection import Projection, Way
from model.residual_stream import ResidualStream
from model.workspace import Workspace

NUM_ROWS, HIDDEN = 17, 64
EPS = 1e-12
FACTOR = 4.0
"""What the sums of squares that come with a sum are too large by: it shows who takes them."""


class SquaringRanks:
    """Two ranks whose other one has the residual, if it travels, or zeros.

    With ``is_squaring`` the squares come with the sum.
    """

    rank, size = 1, 2

    def __init__(self, residual_TE: torch.Tensor, *, is_squaring: bool, are_short: bool) -> None:
        self._residual_TE = residual_TE
        self._is_squaring = is_squaring
        self._are_short = are_short
        self.num_squared = 0

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:
        x += self._residual_TE
        return self._square(x, squares)

    def is_short(self, x: torch.Tensor) -> bool:  # noqa: ARG002
        return self._are_short

    def add_sum(
        self, x: torch.Tensor, residual: torch.Tensor, *, squares: torch.Tensor | None = None
    ) -> bool:
        residual += x
        return self._square(residual, squares)

    def _square(self, x: torch.Tensor, squares: torch.Tensor | None) -> bool:
        if self._is_squaring and squares is not None:
            squares.copy_(FACTOR * sum_squares_ref(x))
            self.num_squared += 1
        return self._is_squaring

    def share_rows(self, num_rows: int, num_hidden: int, *, like: torch.Tensor) -> None:
        """Steps this small are not cut."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack((torch.zeros_like(x), x))


def make_projection(seed: int) -> Projection:
    weight_OI = torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(seed)) / 8
    return Projection(weight_OI=weight_OI, weight_IO=weight_OI.t(), bias_O=None, has_norm=True)


def make_workspace() -> Workspace:
    tensors = {field.name: torch.zeros(NUM_ROWS, HIDDEN) for field in fields(Workspace)}
    tensors["squares_TJ"] = torch.zeros(NUM_ROWS, 2)
    tensors["splits"] = make_projection_workspace(device="cpu", num_numbers=2**12)  # type: ignore[assignment]
    tensors["shared"] = None  # type: ignore[assignment]
    return Workspace(**tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("is_squaring", "way", "num_squared"),
    [(True, Way.TILED, 1), (False, Way.TILED, 0), (True, Way.CUBLAS, 0)],
)
@pytest.mark.parametrize("are_short", [True, False])
def test_squares_that_came_with_a_sum_are_taken(
    is_squaring: bool, way: Way, num_squared: int, are_short: bool
) -> None:
    if torch.cuda.is_available():
        pytest.skip("the workspace lies on the CPU")
    work, residual_TE = make_workspace(), torch.randn(NUM_ROWS, HIDDEN)
    work.residual_TE.copy_(residual_TE)
    ranks = SquaringRanks(residual_TE, is_squaring=is_squaring, are_short=are_short)
    down, qkv = make_projection(1), make_projection(2)
    x_TI = torch.randn(NUM_ROWS, HIDDEN, generator=torch.Generator().manual_seed(3))
    stream, out_TO = ResidualStream(work, ranks=ranks, eps=EPS), torch.empty(NUM_ROWS, HIDDEN)
    stream.add(down, x_TI, way=way)
    stream.project(torch.ones(HIDDEN), qkv, out_TO=out_TO, way=Way.TILED)
    expected = residual_TE + x_TI @ down.weight_IO
    torch.testing.assert_close(work.residual_TE, expected, rtol=1e-4, atol=1e-4)
    expected = norm_linear_ref(work.residual_TE, torch.ones(HIDDEN), qkv.weight_OI, EPS)
    torch.testing.assert_close(out_TO, expected / (FACTOR**0.5 if num_squared else 1.0), rtol=1e-3, atol=1e-3)
    assert ranks.num_squared == num_squared
