"""Fused projections of few rows: odd sizes, every number of rows, strided rows, what lies around."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.small_batch import (
    MAX_ROWS,
    Tile,
    can_fuse,
    choose_tile,
    linear_add,
    norm_gate_up_silu,
    norm_linear,
)
from kernels.small_batch_ref import linear_add_ref, norm_gate_up_silu_ref, norm_linear_ref

EPS = 1e-6
CANARY = 7.0
SIZES = [(96, 48), (100, 37), (64, 32)]


def _tensors(place: Any, num_rows: int, num_inputs: int, num_outputs: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_inputs)
    tensors = (
        torch.randn(num_rows, num_inputs, generator=generator),
        1 + 0.2 * torch.randn(num_inputs, generator=generator),
        torch.randn(num_outputs, num_inputs, generator=generator) * num_inputs**-0.5,
        torch.randn(num_outputs, generator=generator),
    )
    return tuple(tensor.to(place.device, place.dtype) for tensor in tensors)


def _assert_close(place: Any, out: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(out.float(), expected.float(), rtol=place.tolerance, atol=place.tolerance)


@pytest.mark.parametrize(("num_inputs", "num_outputs"), SIZES)
@pytest.mark.parametrize("num_rows", [1, 3, 6, 17])
def test_norm_and_projection(place: Any, num_rows: int, num_inputs: int, num_outputs: int) -> None:
    x, norm_weight, weight, bias = _tensors(place, num_rows, num_inputs, num_outputs)
    out = norm_linear(x, norm_weight, weight, EPS)
    assert out.dtype == place.dtype
    _assert_close(place, out, norm_linear_ref(x, norm_weight, weight, EPS))
    out = norm_linear(x, None, weight, EPS, bias_O=bias)
    _assert_close(place, out, norm_linear_ref(x, None, weight, EPS, bias_O=bias))


@pytest.mark.parametrize(("num_inputs", "num_outputs"), SIZES)
@pytest.mark.parametrize("num_rows", [1, 3, 6, 17])
def test_projection_added_to_a_residual(place: Any, num_rows: int, num_inputs: int, num_outputs: int) -> None:
    x, _, weight, bias = _tensors(place, num_rows, num_inputs, num_outputs)
    residual = torch.stack([bias * (row + 1) for row in range(num_rows)])
    expected = linear_add_ref(x, weight, residual)
    expected_with_bias = linear_add_ref(x, weight, residual, bias_O=bias)
    with_bias = residual.clone()
    assert linear_add(x, weight, residual) is residual
    _assert_close(place, residual, expected)
    _assert_close(place, linear_add(x, weight, with_bias, bias_O=bias), expected_with_bias)


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(96, 64), (100, 74)])
@pytest.mark.parametrize("num_rows", [1, 3, 6, 17])
def test_norm_and_gated_projection(place: Any, num_rows: int, num_inputs: int, num_outputs: int) -> None:
    x, norm_weight, weight, _ = _tensors(place, num_rows, num_inputs, num_outputs)
    out = norm_gate_up_silu(x, norm_weight, weight, EPS)
    assert out.shape == (num_rows, num_outputs // 2)
    _assert_close(place, out, norm_gate_up_silu_ref(x, norm_weight, weight, EPS))


@pytest.mark.parametrize(
    ("num_rows", "most", "is_dot"), [(1, 8, False), (5, 8, False), (1, 16, True), (9, 16, True)]
)
def test_a_row_does_not_depend_on_how_many_there_are(
    place: Any, num_rows: int, most: int, is_dot: bool
) -> None:
    x, norm_weight, weight, _ = _tensors(place, most, 64, 24)
    tile = Tile(num_outputs=4, num_warps=1, is_dot=is_dot)
    out = norm_linear(x[:num_rows], norm_weight, weight, EPS, tile=tile)
    assert torch.equal(out, norm_linear(x, norm_weight, weight, EPS, tile=tile)[:num_rows])


@pytest.mark.parametrize(("is_dot", "is_swapped"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("num_outputs", "num_warps"), [(1, 1), (2, 4), (8, 2), (16, 8)])
def test_any_tile(place: Any, num_outputs: int, num_warps: int, is_dot: bool, is_swapped: bool) -> None:
    x, norm_weight, weight, bias = _tensors(place, 2, 300, 38)
    tile = Tile(num_outputs=num_outputs, num_warps=num_warps, is_dot=is_dot, is_swapped=is_swapped)
    out = norm_linear(x, norm_weight, weight, EPS, bias_O=bias, tile=tile)
    _assert_close(place, out, norm_linear_ref(x, norm_weight, weight, EPS, bias_O=bias))
    out = norm_gate_up_silu(x, norm_weight, weight, EPS, tile=tile)
    _assert_close(place, out, norm_gate_up_silu_ref(x, norm_weight, weight, EPS))


def test_more_inputs_than_one_chunk(place: Any) -> None:
    if place.dtype is torch.float32:
        pytest.skip("two chunks of float32 do not fit a program")
    x, norm_weight, weight, _ = _tensors(place, 9, 2100, 16)
    out = norm_linear(x, norm_weight, weight, EPS)
    _assert_close(place, out, norm_linear_ref(x, norm_weight, weight, EPS))
    _assert_close(place, norm_linear(x[:2], norm_weight, weight, EPS), out[:2])


def test_rows_may_be_strided_and_their_neighbours_stay(place: Any) -> None:
    x, norm_weight, weight, _ = _tensors(place, 2, 64, 37)
    wide = torch.full((2, 3, 64), CANARY, dtype=place.dtype, device=place.device)
    wide[:, 1] = x
    out = torch.full((2, 50), CANARY, dtype=torch.float32, device=place.device)
    norm_linear(wide[:, 1], norm_weight, weight, EPS, out=out[:, :37])
    _assert_close(place, out[:, :37], norm_linear_ref(x, norm_weight, weight, EPS))
    assert (out[:, 37:] == CANARY).all()


@pytest.mark.gpu
def test_a_chain_started_early_gives_the_same(place: Any) -> None:
    if place.device == "cpu":
        pytest.skip("the interpreter starts nothing early")
    x, norm_weight, weight, _ = _tensors(place, 2, 1024, 1024)
    outs = []
    for is_dependent in (False, True):
        hidden = x.clone()
        for _ in range(20):
            act = norm_gate_up_silu(hidden, norm_weight, weight, EPS, is_dependent=is_dependent)
            linear_add(act, weight[:, :512].contiguous(), hidden, is_dependent=is_dependent)
        outs.append(hidden)
    assert torch.equal(*outs)


def test_large_weights_get_large_programs() -> None:
    assert choose_tile(4096, 1024, num_rows=1) == Tile(num_outputs=4, num_warps=4, is_dot=False)
    assert choose_tile(1024, 3072, num_rows=1) == Tile(num_outputs=4, num_warps=8, is_dot=False)
    assert choose_tile(151936, 1024, num_rows=1) == Tile(num_outputs=16, num_warps=8, is_dot=False)
    assert choose_tile(151936, 1024, num_rows=2) == Tile(num_outputs=4, num_warps=1, is_dot=False)
    assert choose_tile(3072, 4096, num_rows=1) == Tile(num_outputs=2, num_warps=8, is_dot=False)
    assert choose_tile(75968, 4096, num_rows=1) == Tile(num_outputs=4, num_warps=4, is_dot=False)
    assert choose_tile(4096, 2048, num_rows=1) == Tile(
        num_outputs=16, num_warps=8, is_dot=True, is_swapped=True
    )
    assert choose_tile(4096, 6144, num_rows=1) == Tile(num_outputs=2, num_warps=8, is_dot=False)
    assert choose_tile(4096, 12288, num_rows=1) == Tile(num_outputs=1, num_warps=8, is_dot=False)
    gated = choose_tile(6144, 4096, num_rows=1, is_gated=True)
    assert gated == Tile(num_outputs=4, num_warps=8, is_dot=False)


def test_tensor_cores_take_2_rows_and_more() -> None:
    wide, many_rows = (
        Tile(num_outputs=num_outputs, num_warps=8, is_dot=True, is_swapped=True) for num_outputs in (16, 32)
    )
    assert choose_tile(4096, 1024, num_rows=2) == wide
    assert choose_tile(1024, 2048, num_rows=8) == wide
    narrow = Tile(num_outputs=8, num_warps=8, is_dot=True)
    assert choose_tile(1024, 3072, num_rows=8) == replace(narrow, is_swapped=True)
    assert choose_tile(1024, 4096, num_rows=8) == narrow
    assert choose_tile(4096, 1024, num_rows=9) == many_rows
    assert choose_tile(3072, 1024, num_rows=16, is_gated=True) == wide
    assert choose_tile(3072, 1024, num_rows=17, is_gated=True) == many_rows
    assert choose_tile(1024, 2048, num_rows=32) == replace(narrow, num_outputs=16)
    assert choose_tile(1024, 2048, num_rows=16) == Tile(num_outputs=16, num_warps=16, is_dot=True)
    assert choose_tile(1024, 3072, num_rows=17) == Tile(num_outputs=16, num_warps=16, is_dot=True)
    assert not choose_tile(151936, 1024, num_rows=4).is_dot


def test_what_does_not_fit_a_program_is_refused() -> None:
    sizes = [(1, 4096), (1, 16384), (1, 16385), (2, 4097)]
    sizes += [(8, 4096), (16, 4096), (32, 3072), (32, 4096), (33, 64)]
    fitting = [size for size in sizes if can_fuse(size[0], 8, size[1], itemsize_bytes=2)]
    assert fitting == [(1, 4096), (1, 16384), (8, 4096), (16, 4096), (32, 3072)]
    with pytest.raises(ValueError, match=r"32 rows of 4096 torch\.float16 take more than 204800 bytes"):
        norm_linear(torch.zeros(32, 4096).half(), None, torch.zeros(8, 4096).half(), EPS)


@pytest.mark.parametrize("num_inputs", [5120, 6100])
def test_one_long_row_is_taken_in_chunks(place: Any, num_inputs: int) -> None:
    x, norm_weight, weight, _ = _tensors(place, 1, num_inputs, 12)
    out = norm_linear(x, norm_weight, weight, EPS)
    _assert_close(place, out, norm_linear_ref(x, norm_weight, weight, EPS))
    residual, expected = torch.ones_like(out), linear_add_ref(x, weight, torch.ones_like(out))
    _assert_close(place, linear_add(x, weight, residual), expected)
    out = norm_gate_up_silu(x, norm_weight, weight, EPS)
    _assert_close(place, out, norm_gate_up_silu_ref(x, norm_weight, weight, EPS))


def test_many_rows_of_a_large_weight_are_left_to_tiles() -> None:
    assert can_fuse(32, 6144, 1024, itemsize_bytes=2)
    assert can_fuse(16, 12288, 2048, itemsize_bytes=2)
    assert not can_fuse(17, 12288, 2048, itemsize_bytes=2)
    # The weights of a swapped product lie in shared memory as well.
    assert can_fuse(8, 8, 1024, itemsize_bytes=4)
    assert not can_fuse(9, 8, 1024, itemsize_bytes=4)


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_inputs"),
    [(16, 4096, 2048), (16, 2048, 1536), (4, 19456, 2560), (8, 16384, 3072), (16, 16384, 3072)],
)
def test_weights_of_float32_lie_beside_the_rows(num_rows: int, num_outputs: int, num_inputs: int) -> None:
    # Compiled for a Hopper, which has 232,448 bytes for a program, the gated ones took 262,144 and more.
    assert not can_fuse(num_rows, num_outputs, num_inputs, itemsize_bytes=4)


def test_more_than_8_rows_need_a_dot() -> None:
    tile = Tile(num_outputs=4, num_warps=1, is_dot=False)
    with pytest.raises(ValueError, match="9 rows need a tile with is_dot"):
        norm_linear(torch.zeros(9, 64), None, torch.zeros(8, 64), EPS, tile=tile)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rows", "x must have 1 to 32 rows"),
        ("no rows", "x must have 1 to 32 rows"),
        ("inputs", "rows of at most 4096"),
        ("weight", r"weight must be contiguous, of \(8, 64\)"),
        ("norm", r"norm_weight must be contiguous, of \(64,\)"),
        ("dtype", "weight of torch.float16 does not fit x of torch.float32"),
        ("out", r"out must have \(2, 8\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, message: str) -> None:
    x, norm_weight, weight, out = torch.zeros(2, 64), torch.zeros(64), torch.zeros(8, 64), torch.zeros(2, 8)
    if change == "rows":
        x = torch.zeros(MAX_ROWS + 1, 64)
    elif change == "no rows":
        x = x[:0]
    elif change == "inputs":
        x = torch.zeros(2, 4097)
    elif change == "weight":
        weight = weight[:, 1:]
    elif change == "norm":
        norm_weight = norm_weight[1:]
    elif change == "dtype":
        weight = weight.half()
    else:
        out = out[:, 1:]
    with pytest.raises(ValueError, match=message):
        norm_linear(x, norm_weight, weight, EPS, out=out)


def test_an_odd_number_of_gates_and_ups_is_refused() -> None:
    with pytest.raises(ValueError, match="even number of rows, gates and ups, but has 7"):
        norm_gate_up_silu(torch.zeros(1, 64), None, torch.zeros(7, 64), EPS)
