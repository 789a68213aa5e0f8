"""Sums of squares in chunks: sizes that are no whole chunks, strided rows, what lies around."""

from typing import Any

import pytest
import torch

from kernels.row_squares import num_sums, sum_squares, sum_squares_ref

CANARY = 7.0


@pytest.mark.parametrize(("num_rows", "num_inputs"), [(1, 32), (3, 100), (2, 7), (5, 256)])
def test_equals_the_reference(place: Any, num_rows: int, num_inputs: int) -> None:
    x = torch.randn(num_rows, num_inputs).to(place.device, place.dtype)
    squares = sum_squares(x)
    assert squares.dtype == torch.float32
    torch.testing.assert_close(squares, sum_squares_ref(x), rtol=1e-5, atol=1e-5)


def test_the_reference_by_hand() -> None:
    x = torch.cat((torch.full((1, 32), 2.0), torch.tensor([[3.0, 4.0]])), 1)
    assert num_sums(34) == 2
    assert sum_squares_ref(x).tolist() == [[128.0, 25.0]]


def test_rows_may_be_strided_and_their_neighbours_stay(place: Any) -> None:
    wide = torch.ones(3, 2, 64, dtype=place.dtype, device=place.device)
    out = torch.full((4, 2), CANARY, device=place.device)
    sum_squares(wide[:, 1], out=out[:3])
    assert out.tolist() == [[32.0, 32.0]] * 3 + [[CANARY, CANARY]]


def test_memory_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"contiguous float32 of \(2, 3\), but are torch.float32 of \(2, 2\)"
    ):
        sum_squares(torch.zeros(2, 65), out=torch.zeros(2, 2))
