"""Projections of dozens of rows on Hopper: emulated on a CPU, and on such a GPU against the reference."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels import cluster_sum, hopper_projection_kernel, large_gate_kernel
from kernels.gpu import BARRIER_BYTES, HOPPER_SHARED_BYTES
from kernels.hopper_projection import launch_constants
from kernels.hopper_tiles import MOST_ROWS, HopperTile, choose_hopper_tile, has_shared_memory
from kernels.row_squares import SQUARES_CHUNK, sum_squares_ref
from kernels.small_batch_ref import linear_add_ref, norm_gate_up_silu_ref, norm_linear_ref
from kernels.tiled_projection import linear_add, norm_gate_up_silu, norm_linear
from tests.kernels.emulated_gluon import Descriptor, Pointer, call_emulated, run_emulated

EPS = 1e-6
CANARY = 7.0
ROWS, INPUTS, OUTPUTS = 20, 128, 64
TILE = HopperTile(
    block_rows=16, block_outputs=32, block_inputs=16, num_splits=1, row_stages=3, weight_stages=2
)
TILES = [
    pytest.param(TILE, id="weights-again"),
    pytest.param(replace(TILE, row_stages=2, weight_stages=8), id="rows-again"),
    pytest.param(replace(TILE, block_rows=32, is_swapped=True), id="swapped"),
    pytest.param(replace(TILE, num_splits=2), id="shared"),
    pytest.param(replace(TILE, row_stages=8, weight_stages=8, block_rows=64), id="all-held"),
]
QWEN_SHAPES = {"qkv": (4096, 1024), "output": (1024, 2048), "gate_up": (3072, 1024), "down": (1024, 3072)}


def _emulate(
    tile: HopperTile, given: tuple[torch.Tensor, ...], squares: torch.Tensor | None, *, is_added: bool = False
) -> None:
    """Launch as hopper_projection does, with x, weight and out; a weight of twice out's columns is gated."""
    x, weight, out = given
    is_gated = len(weight) == 2 * out.shape[1]
    (num_rows, num_inputs), num_outputs = x.shape, out.shape[1]
    weights = weight.numpy().reshape((2, num_outputs, num_inputs) if is_gated else weight.shape)
    block = (*weights.shape[:-2], tile.block_outputs, tile.block_inputs)
    at = None if squares is None else Pointer(squares.numpy().ravel())
    run_emulated(
        (hopper_projection_kernel, large_gate_kernel),
        *(Descriptor(x.numpy(), (tile.block_rows, tile.block_inputs)), Descriptor(weights, block)),
        *(weights.ravel(), out.numpy().ravel()),
        *((None, at) if is_added else (at, None)),
        *(out.stride(0), num_rows, EPS),
        num_programs=-(-num_rows // tile.block_rows) * (num_outputs // tile.block_outputs),
        cluster_size=tile.num_splits,
        IS_ADDED=is_added,
        PDL=False,
        **launch_constants(tile, num_outputs, num_inputs, is_gated),
    )


def _tensors(num_rows: int, num_inputs: int, num_outputs: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) * num_inputs**-0.5
    residual = torch.randn(num_rows, num_outputs, generator=generator)
    return torch.randn(num_rows, num_inputs, generator=generator), weight, residual


@pytest.mark.parametrize("tile", TILES)
def test_norm_and_projection(tile: HopperTile) -> None:
    x, weight, _ = _tensors(ROWS, INPUTS, OUTPUTS)
    out = torch.full((ROWS + 1, OUTPUTS), CANARY)
    _emulate(tile, (x, weight, out[:ROWS]), sum_squares_ref(x))
    torch.testing.assert_close(out[:ROWS], norm_linear_ref(x, torch.ones(INPUTS), weight, EPS))
    assert (out[ROWS] == CANARY).all()
    _emulate(tile, (x, weight, out[:ROWS]), None)
    torch.testing.assert_close(out[:ROWS], x @ weight.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tile", TILES)
def test_norm_and_gated_projection(tile: HopperTile) -> None:
    x, weight, _ = _tensors(ROWS, INPUTS, 2 * OUTPUTS)
    out = torch.empty(ROWS, OUTPUTS)
    _emulate(tile, (x, weight, out), sum_squares_ref(x))
    torch.testing.assert_close(out, norm_gate_up_silu_ref(x, torch.ones(INPUTS), weight, EPS))


@pytest.mark.parametrize("num_splits", [1, 2, 4])
def test_a_sum_and_its_squares(num_splits: int) -> None:
    x, weight, residual = _tensors(ROWS, INPUTS, OUTPUTS)
    tile = replace(TILE, num_splits=num_splits, block_rows=64)
    expected = linear_add_ref(x, weight, residual.clone())
    squares = torch.full((ROWS + 1, OUTPUTS // SQUARES_CHUNK), CANARY)
    _emulate(tile, (x, weight, residual), squares, is_added=True)
    torch.testing.assert_close(residual, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squares[:ROWS], sum_squares_ref(residual))
    assert (squares[ROWS] == CANARY).all()


@pytest.mark.parametrize("size", [2, 4])
def test_numbers_of_a_cluster_have_places_of_their_own(size: int) -> None:
    num_rows, num_columns = 64, 32
    place = np.asarray(call_emulated(cluster_sum, "_place", num_rows, num_columns, size, None))
    own = place[: num_rows // size]
    assert sorted(own.ravel()) == list(range(0, 4 * own.size, 4))
    assert (place.reshape(size, -1) == own.ravel()).all()
    # A warp's threads send pairs of columns of 8 rows, 32 bytes a row: no two of them to one bank.
    banks = place[:8, :8] // 4 % 32
    assert len(np.unique(banks)) == 32


def _on_gpu(num_rows: int, name: str) -> tuple[torch.Tensor, ...]:
    """Return x, with memory behind its rows, a weight and a residual of Qwen3-0.6B's shapes."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")
    num_outputs, num_inputs = QWEN_SHAPES[name]
    num_weights = 2 if name == "gate_up" else 1
    generator = torch.Generator().manual_seed(num_inputs)
    x = torch.randn(MOST_ROWS, num_inputs, generator=generator)
    weight = torch.randn(num_weights * num_outputs, num_inputs, generator=generator) * num_inputs**-0.5
    residual = torch.randn(MOST_ROWS, num_outputs, generator=generator)
    x, weight, residual = (tensor.to("cuda", torch.bfloat16) for tensor in (x, weight, residual))
    return x[:num_rows], weight, residual[:num_rows]


def _compute(name: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if name in ("output", "down"):
        squares = torch.empty(len(x), residual.shape[1] // SQUARES_CHUNK, device=x.device)
        out = linear_add(x, weight, residual.clone(), squares_RJ=squares, is_dependent=True)
        torch.testing.assert_close(squares, sum_squares_ref(out), rtol=1e-4, atol=1e-4)
        return out
    options: dict[str, Any] = {"is_normed": True, "squares_RJ": sum_squares_ref(x), "is_dependent": True}
    if name == "gate_up":
        return norm_gate_up_silu(x, None, weight, EPS, **options)
    return norm_linear(x, None, weight, EPS, **options)


def _expect(name: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if name in ("output", "down"):
        return residual.float() + x.float() @ weight.float().T
    projected = x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + EPS) @ weight.float().T
    if name == "qkv":
        return projected
    gate, up = projected.chunk(2, 1)
    return torch.nn.functional.silu(gate) * up


def _tile_of(name: str, num_rows: int) -> HopperTile | None:
    return choose_hopper_tile(*QWEN_SHAPES[name], num_rows=num_rows, is_gated=name == "gate_up")


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 7, 16, 17, 32, 40, 64, 72, 120, 128, 136, 170, 256])
@pytest.mark.parametrize("name", QWEN_SHAPES)
def test_on_hopper(name: str, num_rows: int) -> None:
    given = _on_gpu(num_rows, name)
    out = _compute(name, *given)
    expected = _expect(name, *given)
    assert (out.float() - expected).norm() < 4e-3 * expected.norm()
    # Beside others, but in a launch of the same shape, a row is the same.
    for more in (16, 32, 64, 96, 128, 160, 192, 256):
        if num_rows <= more and _tile_of(name, more) == _tile_of(name, num_rows):
            assert torch.equal(_compute(name, *_on_gpu(more, name))[:num_rows], out)


def shared_bytes_of(tile: HopperTile, num_inputs: int, *, is_gated: bool) -> int:
    """Return what a launch takes of shared memory, but for the barriers of its buffers."""
    constants = launch_constants(tile, tile.block_outputs, num_inputs, is_gated)
    num_columns = tile.block_outputs * (1 + is_gated)
    rows, weights = tile.block_rows * constants["ROW_STAGES"], num_columns * constants["WEIGHT_STAGES"]
    sums = tile.block_rows * num_columns * 4 + 1024 if tile.num_splits > 1 else 0
    return int((rows + weights) * tile.block_inputs * 2 + sums)


def test_tiles_by_rows_and_shape() -> None:
    for num_rows in (1, 16, 17, 32, 33, 64, 65, 128, 129, MOST_ROWS):
        for name, (num_outputs, num_inputs) in QWEN_SHAPES.items():
            is_gated = name == "gate_up"
            tile = choose_hopper_tile(num_outputs, num_inputs, num_rows=num_rows, is_gated=is_gated)
            assert tile is not None
            assert num_inputs % (tile.num_splits * tile.block_inputs) == num_outputs % tile.block_outputs == 0
            num_columns = tile.block_outputs * (1 + is_gated)
            assert (num_columns if tile.is_swapped else tile.block_rows) % (16 * tile.num_warps) == 0
            assert tile.block_rows // tile.num_splits >= 2
            assert shared_bytes_of(tile, num_inputs, is_gated=is_gated) + BARRIER_BYTES <= HOPPER_SHARED_BYTES
            assert tile.block_outputs % SQUARES_CHUNK == 0


def test_what_no_tile_is_for() -> None:
    assert choose_hopper_tile(4096, 1024, num_rows=MOST_ROWS + 1) is None
    assert choose_hopper_tile(4096, 1000, num_rows=64) is None
    assert choose_hopper_tile(4100, 1024, num_rows=64) is None
    assert choose_hopper_tile(4096, 4096, num_rows=64) is None


def test_a_share_of_the_outputs_is_split_until_there_are_programs_enough() -> None:
    """QKV of Qwen3-0.6B on two ranks, gates on two and on four, the output projection on sixteen."""
    shapes = [(2048, 1024, False), (1536, 1024, True), (768, 1024, True), (1024, 128, False)]
    tiles = [choose_hopper_tile(*shape, num_rows=32, is_gated=is_gated) for *shape, is_gated in shapes]
    assert [tile and tile.num_splits for tile in tiles] == [4, 4, None, None]


def test_a_program_whose_sums_alone_pass_the_default_shared_memory_is_no_tile() -> None:
    """The output projection of 512 inputs: 32 KiB of buffers, and 17 KiB for sums that nobody asks for."""
    assert choose_hopper_tile(1024, 512, num_rows=40) is None
    few = choose_hopper_tile(1024, 512, num_rows=16)
    assert few is not None
    assert has_shared_memory(few, 1, is_gated=False)
    many = choose_hopper_tile(1024, 1024, num_rows=40)
    assert many is not None
    assert has_shared_memory(many, 2, is_gated=False)
    assert not has_shared_memory(many, 1, is_gated=False)
    assert has_shared_memory(replace(many, num_splits=1), 1, is_gated=False)
