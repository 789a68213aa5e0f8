"""silu(gate) * up: odd sizes, strided rows, nothing past the result."""

from typing import Any

import pytest
import torch

from kernels.silu_mul import silu_mul, silu_mul_ref

CANARY = 7.0


def _gate_up(place: Any, num_rows: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return (3 * torch.randn(num_rows, 2 * size, generator=generator)).to(place.device, place.dtype)


@pytest.mark.parametrize(("num_rows", "size"), [(1, 96), (3, 1000), (2, 1536)])
def test_equals_the_reference(place: Any, num_rows: int, size: int) -> None:
    gate_up = _gate_up(place, num_rows, size)
    out = silu_mul(gate_up)
    torch.testing.assert_close(out, silu_mul_ref(gate_up), rtol=place.tolerance, atol=place.tolerance)


@pytest.mark.parametrize(("num_rows", "size", "num_inputs"), [(1, 96, 40), (3, 1000, 64), (2, 5000, 100)])
def test_a_residuals_norm_is_a_factor_of_each_row(
    place: Any, num_rows: int, size: int, num_inputs: int
) -> None:
    gate_up = _gate_up(place, num_rows, size)
    residual = torch.randn(num_rows, 2, num_inputs, generator=torch.Generator().manual_seed(1))
    residual_TE = residual.to(place.device, place.dtype)[:, 1]
    out = silu_mul(gate_up, residual_TE=residual_TE, eps=0.5)
    factor_T1 = (residual_TE.float().square().mean(1, keepdim=True) + 0.5).rsqrt()
    expected = silu_mul_ref(gate_up, residual_TE=residual_TE, eps=0.5)
    torch.testing.assert_close(expected, silu_mul_ref(gate_up.float() * factor_T1).to(place.dtype))
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)


def test_the_reference_by_hand() -> None:
    gate_up = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert silu_mul_ref(gate_up).tolist() == [[0.0, pytest.approx(3 / (1 + torch.tensor(-1.0).exp().item()))]]


def test_rows_may_be_strided_and_their_neighbours_stay(place: Any) -> None:
    gate_up = _gate_up(place, 2, 100)
    wide = torch.full((2, 2, 200), CANARY, dtype=place.dtype, device=place.device)
    wide[:, 1] = gate_up
    out = torch.full((2, 130), CANARY, dtype=place.dtype, device=place.device)
    silu_mul(wide[:, 1], out=out[:, :100])
    expected = silu_mul_ref(gate_up)
    torch.testing.assert_close(out[:, :100], expected, rtol=place.tolerance, atol=place.tolerance)
    assert (out[:, 100:] == CANARY).all()


# exp overflows to infinity on its way to the right 0; only numpy warns of it.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_large_gates_neither_overflow_nor_become_nan(place: Any) -> None:
    gate_up = torch.tensor([[-200.0, 200.0, 2.0, 2.0]], dtype=place.dtype, device=place.device)
    assert silu_mul(gate_up).tolist() == [[0.0, 400.0]]


def test_no_rows_are_no_launch(place: Any) -> None:
    assert silu_mul(_gate_up(place, 0, 8)).shape == (0, 8)


@pytest.mark.parametrize(
    ("gate_up", "out", "message"),
    [
        ((2, 7), (2, 3), "rows of an even number"),
        ((2, 8), (2, 5), r"out must be torch.float32 of \(2, 4\)"),
        ((2, 2, 8), (2, 4), "two dimensions"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    gate_up: tuple[int, ...], out: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        silu_mul(torch.zeros(gate_up), out=torch.zeros(out))


def test_a_residual_of_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"residual must have 2 rows without gaps, but is of \(3, 4\)"):
        silu_mul(torch.zeros(2, 8), residual_TE=torch.zeros(3, 4))
