"""Tiled projections: odd sizes, every kind of tile, split inputs, strided rows, what lies around."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.row_squares import SQUARES_CHUNK, sum_squares_ref
from kernels.small_batch_ref import linear_add_ref, norm_gate_up_silu_ref, norm_linear_ref
from kernels.tiled_config import (
    MAX_SPLIT_NUMBERS,
    MAX_TILES,
    ProjectionTile,
    choose_projection_tile,
    make_projection_workspace,
)
from kernels.tiled_projection import linear_add, norm_gate_up_silu, norm_linear

EPS = 1e-6
CANARY = 7.0
SHAPES = [(4096, 1024), (1024, 2048), (2048, 3072)]
LARGE_SHAPES = [(4096, 12288), (4096, 6144)]
TILE = ProjectionTile(block_rows=16, block_outputs=32, block_inputs=32, is_tma=False)
# Rows, inputs and outputs: whole blocks; and no block is whole, nor are rows aligned for the copy engine.
WHOLE, ODD = (18, 128, 64), (17, 100, 74)
TILED_SIZES = [
    pytest.param(TILE, ODD, id="plain"),
    pytest.param(replace(TILE, is_swapped=True), ODD, id="swapped"),
    pytest.param(replace(TILE, is_tma=True), WHOLE, id="tma"),
    pytest.param(replace(TILE, is_tma=True, is_swapped=True, block_rows=32), ODD, id="tma-unaligned"),
]


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


@pytest.mark.parametrize(("tile", "size"), TILED_SIZES)
def test_norm_and_projection(place: Any, tile: ProjectionTile, size: tuple[int, int, int]) -> None:
    x, norm_weight, weight, bias = _tensors(place, *size)
    out = norm_linear(x, norm_weight, weight, EPS, bias_O=bias, tile=tile)
    assert out.dtype == place.dtype
    _assert_close(place, out, norm_linear_ref(x, norm_weight, weight, EPS, bias_O=bias))


@pytest.mark.parametrize(("tile", "size"), TILED_SIZES)
def test_norm_and_gated_projection(place: Any, tile: ProjectionTile, size: tuple[int, int, int]) -> None:
    x, norm_weight, weight, _ = _tensors(place, *size)
    out = norm_gate_up_silu(x, norm_weight, weight, EPS, tile=tile)
    _assert_close(place, out, norm_gate_up_silu_ref(x, norm_weight, weight, EPS))


@pytest.mark.parametrize(("num_rows", "num_gated"), [(3, 32), (20, 40)])
def test_gates_and_ups_are_one_side_of_a_product(place: Any, num_rows: int, num_gated: int) -> None:
    x, norm_weight, weight, _ = _tensors(place, num_rows, 64, 2 * num_gated)
    tile = replace(TILE, is_tma=True, is_swapped=True, is_paired=True)
    out = norm_gate_up_silu(x, norm_weight, weight, EPS, tile=tile)
    _assert_close(place, out, norm_gate_up_silu_ref(x, norm_weight, weight, EPS))


@pytest.mark.parametrize(("tile", "size"), TILED_SIZES[:2])
def test_a_projection_whose_inputs_are_split(
    place: Any, tile: ProjectionTile, size: tuple[int, int, int]
) -> None:
    x, norm_weight, weight, bias = _tensors(place, *size)
    workspace = make_projection_workspace(num_numbers=2**16, device=place.device)
    split = replace(tile, num_splits=3, block_inputs=16, most_ahead=16)
    out = norm_linear(x, norm_weight, weight, EPS, bias_O=bias, workspace=workspace, tile=split)
    _assert_close(place, out, norm_linear_ref(x, norm_weight, weight, EPS, bias_O=bias))
    assert not workspace.counters_X.any()


def test_a_projection_is_split_where_there_is_a_workspace(place: Any) -> None:
    x, _, weight, _ = _tensors(place, 2, 64, 32)
    workspace = make_projection_workspace(num_numbers=2**12, device=place.device)
    workspace.partial_X.fill_(CANARY)
    out = norm_linear(x, None, weight, EPS, workspace=workspace)
    _assert_close(place, out, norm_linear_ref(x, None, weight, EPS))
    assert (workspace.partial_X != CANARY).any()


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(("tile", "size"), TILED_SIZES)
def test_a_sum_and_its_squares(
    place: Any, tile: ProjectionTile, size: tuple[int, int, int], num_splits: int
) -> None:
    x, _, weight, bias = _tensors(place, *size)
    num_rows, _, num_outputs = size
    residual = torch.stack([bias * (row % 5 + 1) for row in range(num_rows)])
    expected = linear_add_ref(x, weight, residual, bias_O=bias)
    squares = torch.full((num_rows + 1, -(-num_outputs // 32)), CANARY, device=place.device)
    workspace = make_projection_workspace(num_numbers=2**16, device=place.device)
    out = linear_add(
        x,
        weight,
        residual,
        bias_O=bias,
        squares_RJ=squares[:num_rows],
        workspace=workspace,
        tile=replace(tile, num_splits=num_splits, block_inputs=16),
    )
    assert out is residual
    _assert_close(place, residual, expected)
    torch.testing.assert_close(squares[:num_rows], sum_squares_ref(residual), rtol=1e-4, atol=1e-4)
    assert (squares[num_rows] == CANARY).all()
    assert not workspace.counters_X.any()


def test_a_norm_takes_the_squares_that_it_is_given(place: Any) -> None:
    x, _, weight, _ = _tensors(place, 3, 64, 32)
    squares = sum_squares_ref(x)
    out = norm_linear(x, None, weight, EPS, is_normed=True, squares_RJ=squares, tile=TILE)
    _assert_close(place, out, norm_linear_ref(x, torch.ones_like(x[0]), weight, EPS))
    half = norm_linear(x, None, weight, EPS, is_normed=True, squares_RJ=4 * squares, tile=TILE)
    _assert_close(place, half, out / 2)
    _assert_close(place, norm_linear(x, None, weight, EPS, tile=TILE), norm_linear_ref(x, None, weight, EPS))


def test_a_row_does_not_depend_on_how_many_there_are(place: Any) -> None:
    x, norm_weight, weight, _ = _tensors(place, 37, 64, 32)
    all_rows = norm_linear(x, norm_weight, weight, EPS, tile=TILE)
    for num_rows in (1, 17):
        assert torch.equal(
            norm_linear(x[:num_rows], norm_weight, weight, EPS, tile=TILE), all_rows[:num_rows]
        )


def test_rows_may_be_strided_and_their_neighbours_stay(place: Any) -> None:
    x, norm_weight, weight, _ = _tensors(place, 18, 64, 37)
    wide = torch.full((18, 3, 64), CANARY, dtype=place.dtype, device=place.device)
    wide[:, 1] = x
    out = torch.full((20, 50), CANARY, dtype=torch.float32, device=place.device)
    norm_linear(wide[:, 1], norm_weight, weight, EPS, out=out[:18, :37], tile=replace(TILE, is_tma=True))
    _assert_close(place, out[:18, :37], norm_linear_ref(x, norm_weight, weight, EPS))
    assert (out[:, 37:] == CANARY).all()
    assert (out[18:] == CANARY).all()


def test_what_lies_behind_the_rows_does_not_matter(place: Any) -> None:
    x, norm_weight, weight, _ = _tensors(place, 64, 64, 32)
    tile = replace(TILE, is_tma=True)
    alone = norm_linear(x[:17].clone(), norm_weight, weight, EPS, tile=tile)
    x[17:] = float("nan")
    assert torch.equal(norm_linear(x[:17], norm_weight, weight, EPS, tile=tile), alone)


@pytest.mark.gpu
def test_a_chain_started_early_gives_the_same(place: Any) -> None:
    if place.device == "cpu":
        pytest.skip("the interpreter starts nothing early")
    x, _, weight, _ = _tensors(place, 40, 1024, 1024)
    down = weight[:, :512].contiguous()
    workspace = make_projection_workspace(device=place.device)
    outs = []
    for is_dependent in (False, True):
        hidden, squares = x.clone(), sum_squares_ref(x)
        given: dict[str, Any] = {"squares_RJ": squares, "is_dependent": is_dependent}
        for _ in range(20):
            act = norm_gate_up_silu(hidden, None, weight, EPS, is_normed=True, **given)
            linear_add(act, down, hidden, workspace=workspace, **given)
        outs.append(hidden)
    assert torch.equal(*outs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no rows", r"x must have rows and inputs, but has \(0, 64\)"),
        ("weight", r"weight must be contiguous, of \(32, 64\)"),
        ("out", r"out must have \(2, 32\)"),
        ("squares", r"contiguous float32 of \(2, 2\), but are torch.float32 of \(2, 1\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, message: str) -> None:
    x, weight, out = torch.zeros(2, 64), torch.zeros(32, 64), torch.zeros(2, 32)
    squares = None
    if change == "no rows":
        x = x[:0]
    elif change == "weight":
        weight = torch.zeros(64, 32).t()
    elif change == "out":
        out = out[:, 1:]
    else:
        squares = torch.zeros(2, 1)
    with pytest.raises(ValueError, match=message):
        norm_linear(x, None, weight, EPS, out=out, is_normed=True, squares_RJ=squares, tile=TILE)


def test_gates_and_ups_are_not_split() -> None:
    x, weight = torch.zeros(2, 64), torch.zeros(64, 64)
    with pytest.raises(ValueError, match="gates and ups are not split"):
        norm_gate_up_silu(x, None, weight, EPS, tile=replace(TILE, num_splits=2))


def test_a_workspace_that_is_too_small_is_refused() -> None:
    x, weight, residual = torch.zeros(2, 64), torch.zeros(32, 64), torch.zeros(2, 32)
    tile, workspace = replace(TILE, num_splits=2), make_projection_workspace(num_numbers=1023, device="cpu")
    with pytest.raises(ValueError, match="1 tiles of 1024 numbers are more than"):
        linear_add(x, weight, residual, workspace=workspace, tile=tile)


def test_squares_need_tiles_of_whole_chunks() -> None:
    x, weight, residual = torch.zeros(2, 64), torch.zeros(32, 64), torch.zeros(2, 32)
    with pytest.raises(ValueError, match="a tile of 16 outputs makes no sums of 32 squares"):
        linear_add(x, weight, residual, squares_RJ=torch.zeros(2, 1), tile=replace(TILE, block_outputs=16))


def test_an_odd_number_of_gates_and_ups_is_refused() -> None:
    with pytest.raises(ValueError, match="even number of rows, gates and ups, but has 7"):
        norm_gate_up_silu(torch.zeros(1, 64), None, torch.zeros(7, 64), EPS)


def test_tiles_by_rows_and_shape() -> None:
    qkv, output, down = (choose_projection_tile(*size, num_rows=32) for size in SHAPES)
    assert (qkv.block_rows, qkv.block_outputs, qkv.block_inputs) == (32, 32, 256)
    assert (qkv.num_splits, output.num_splits, down.num_splits) == (1, 1, 4)
    assert choose_projection_tile(1024, 3072, num_rows=32, can_split=False).num_splits == 1
    gated = choose_projection_tile(3072, 1024, num_rows=32, is_gated=True)
    assert gated == ProjectionTile(block_rows=32, block_outputs=64, block_inputs=128, is_swapped=True)
    assert choose_projection_tile(4096, 1024, num_rows=32, itemsize_bytes=4) == replace(qkv, block_inputs=128)
    assert choose_projection_tile(4096, 1024, num_rows=10**6).block_rows == 128


def test_a_large_weight_has_tiles_of_its_own_up_to_32_rows() -> None:
    for size in LARGE_SHAPES:
        few, some, more = (choose_projection_tile(*size, num_rows=num_rows) for num_rows in (1, 32, 33))
        assert (few.block_rows, some.block_rows) == (16, 32)
        assert few == replace(some, block_rows=16)
        assert (some.block_outputs, some.block_inputs, some.num_stages) == (64, 256, 3)
        assert (some.num_splits, some.is_swapped, some.most_ahead) == (2, True, 128)
        assert more == choose_projection_tile(4096, 1024, num_rows=33)
        alone = choose_projection_tile(*size, num_rows=32, can_split=False)
        assert alone == replace(some, num_splits=1)
    # Few inputs, or tiles enough for all multiprocessors, are not split.
    for size in ((4096, 2048), (6144, 4096)):
        assert choose_projection_tile(*size, num_rows=32) == alone
    gated = choose_projection_tile(12288, 4096, num_rows=32, is_gated=True)
    assert gated == replace(choose_projection_tile(3072, 1024, num_rows=32, is_gated=True), most_ahead=128)
    # Where tiles of 64 gates are fewer than multiprocessors.
    paired, of_16_rows = (
        choose_projection_tile(6144, 4096, num_rows=num_rows, is_gated=True) for num_rows in (32, 16)
    )
    assert paired == replace(gated, block_outputs=32, num_stages=3, is_paired=True)
    assert of_16_rows == replace(paired, block_rows=16, num_stages=4)


def test_every_tile_makes_squares_and_fits_the_workspace() -> None:
    for num_rows in (1, 16, 17, 64, 65, 128, 129, 256, 257, 4096):
        for num_outputs, num_inputs in SHAPES + LARGE_SHAPES:
            tile = choose_projection_tile(num_outputs, num_inputs, num_rows=num_rows)
            assert tile.block_outputs % SQUARES_CHUNK == 0
            if tile.num_splits > 1:
                num_tiles = -(-num_rows // tile.block_rows) * -(-num_outputs // tile.block_outputs)
                numbers = num_tiles * tile.block_rows * tile.block_outputs * tile.num_splits
                assert num_tiles <= MAX_TILES
                assert numbers <= MAX_SPLIT_NUMBERS
