"""Residual plus RMS norm: odd sizes, strided rows, both tensors written, nothing past them."""

from typing import Any

import pytest
import torch

from kernels.fused_norm import add_rms_norm, add_rms_norm_kernel, add_rms_norm_ref, choose_norm_tile

EPS = 1e-6
CANARY = 7.0


def _tensors(place: Any, num_rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    x, residual = torch.randn(2, num_rows, size, generator=generator).to(place.device, place.dtype)
    weight = 1 + 0.2 * torch.randn(size, generator=generator)
    return x, residual, weight.to(place.device, place.dtype)


@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (3, 100), (5, 576), (2, 1024)])
def test_sum_and_norm_equal_the_references(place: Any, num_rows: int, size: int) -> None:
    x, residual, weight = _tensors(place, num_rows, size)
    expected_residual = residual.clone()
    expected = add_rms_norm_ref(x, expected_residual, weight, EPS)
    out = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(residual, expected_residual)
    assert out.dtype == place.dtype
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)


def test_without_a_residual_x_alone_is_normalized_into_a_given_tensor(place: Any) -> None:
    x, _, weight = _tensors(place, 3, 96)
    before = x.clone()
    out = torch.full_like(x, CANARY)
    assert add_rms_norm(x, None, weight, EPS, out=out) is out
    expected = add_rms_norm_ref(x, None, weight, EPS)
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)
    assert torch.equal(x, before)


def test_the_reference_is_pytorchs_norm(place: Any) -> None:
    x, _, weight = _tensors(place, 3, 96)
    expected = torch.nn.functional.rms_norm(x.float(), (96,), weight.float(), EPS)
    torch.testing.assert_close(
        add_rms_norm_ref(x, None, weight, EPS).float(), expected, rtol=place.tolerance, atol=place.tolerance
    )


def test_rows_may_be_strided_and_their_neighbours_stay(place: Any) -> None:
    x, residual, weight = _tensors(place, 3, 100)
    fused = torch.full((3, 3, 100), CANARY, dtype=place.dtype, device=place.device)
    fused[:, 1] = x
    wide = torch.full((3, 2, 100), CANARY, dtype=place.dtype, device=place.device)
    wide[:, 0] = residual
    out = add_rms_norm(fused[:, 1], wide[:, 0], weight, EPS, out=fused[:, 1])
    expected = add_rms_norm_ref(x, residual, weight, EPS)
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)
    assert torch.equal(wide[:, 0], residual)
    assert (fused[:, ::2] == CANARY).all()
    assert (wide[:, 1] == CANARY).all()


@pytest.mark.parametrize("rows", [2, 4])
def test_several_rows_a_program_and_a_last_one_that_is_not_full(place: Any, rows: int) -> None:
    x, residual, weight = _tensors(place, 5, 100)
    out, total = torch.full((2, 6, 100), CANARY, dtype=place.dtype, device=place.device)
    total[:5] = residual
    strides = (x.stride(0), total.stride(0), out.stride(0))
    sizes = {"E": 100, "ROWS": rows, "BLOCK_E": 128, "HAS_RESIDUAL": True, "PDL": False}
    add_rms_norm_kernel[(-(-5 // rows),)](x, total, weight, out, *strides, 5, EPS, **sizes)
    expected = add_rms_norm_ref(x, residual, weight, EPS)
    torch.testing.assert_close(out[:5], expected, rtol=place.tolerance, atol=place.tolerance)
    assert torch.equal(total[:5], residual)
    assert (out[5] == CANARY).all()
    assert (total[5] == CANARY).all()


def test_no_rows_are_no_launch(place: Any) -> None:
    x, residual, weight = _tensors(place, 0, 64)
    assert add_rms_norm(x, residual, weight, EPS).shape == (0, 64)


def test_short_rows_share_a_program_once_there_are_many() -> None:
    assert choose_norm_tile(1, 1024) == (1, 4)
    assert choose_norm_tile(4096, 1024) == (2, 8)
    assert choose_norm_tile(4096, 8192) == (1, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("weight", r"weight must be contiguous, of shape \(64,\)"),
        ("residual dtype", "residual must have x's shape"),
        ("out shape", "out must have x's shape"),
        ("strides", "x must have x's shape .* strides"),
        ("dimensions", "x must have two dimensions"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, message: str) -> None:
    x, residual, weight, out = torch.zeros(2, 64), torch.zeros(2, 64), torch.zeros(64), torch.zeros(2, 64)
    if change == "weight":
        weight = weight[1:]
    elif change == "residual dtype":
        residual = residual.half()
    elif change == "out shape":
        out = out[:1]
    elif change == "strides":
        x = torch.zeros(64, 2).t()
    else:
        x = x[None]
    with pytest.raises(ValueError, match=message):
        add_rms_norm(x, residual, weight, EPS, out=out)
