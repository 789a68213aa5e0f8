"""Launches projections of up to hundreds of rows on a Hopper GPU. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, J sums of squares of a row.
"""

from functools import cache
from typing import Any

import torch
import triton

from kernels.dependent_launch import can_depend, launch_options
from kernels.gluon_kernels import MBarrierLayout, TensorDescriptor, gl, hopper_projection_kernel, runs_gluon
from kernels.hopper_tiles import MOST_ROWS, HopperTile, choose_hopper_tile, num_buffers
from kernels.row_squares import check_squares
from kernels.rows_behind import with_rows_behind

SWIZZLE_BYTES = 128
"""Of a row that a bank group of shared memory takes: 64 inputs."""


def can_hold(weight_OI: torch.Tensor, *, is_gated: bool) -> bool:
    """Tell whether hopper_projection fits this weight and its device, with any rows that it is for."""
    if weight_OI.dtype != torch.bfloat16 or not runs_gluon(weight_OI.device):
        return False
    num_outputs, num_inputs = weight_OI.shape
    num_outputs = num_outputs // 2 if is_gated else num_outputs
    rows = (1 << power for power in range(MOST_ROWS.bit_length()))
    tiles = (choose_hopper_tile(num_outputs, num_inputs, num_rows=num, is_gated=is_gated) for num in rows)
    return None not in tiles


def hopper_projection(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    out_RO: torch.Tensor,
    eps: float,
    *,
    tile: HopperTile,
    is_gated: bool,
    is_added: bool,
    squares_RJ: torch.Tensor | None,
    is_dependent: bool,
) -> torch.Tensor:
    """Write what tiled_projection's functions do, and return out; a tile of hopper_tiles' must fit.

    Args:
        x_RI: rows may be strided by multiples of 16 bytes.
        weight_OI: without a norm's weight of its own; of gates and ups if gated.
        out_RO: of x's dtype.
        eps: added to the mean of squares.
        tile: its blocks divide I and O.
        is_gated: whether gates and ups are multiplied.
        is_added: whether out's numbers are added to; squares_RJ is then written, and else read.
        squares_RJ: None: no norm in front, or none behind.
        is_dependent: let it start while the kernel before it runs, where the device can.
    """
    (num_rows, num_inputs), num_outputs = x_RI.shape, out_RO.shape[1]
    if squares_RJ is not None:
        check_squares(squares_RJ, num_rows, num_outputs if is_added else num_inputs)
    weights = weight_OI.view(2, num_outputs, num_inputs) if is_gated else weight_OI
    weight_block = (*weights.shape[:-2], tile.block_outputs, tile.block_inputs)
    num_tiles = triton.cdiv(num_rows, tile.block_rows) * (num_outputs // tile.block_outputs)
    hopper_projection_kernel[(num_tiles,)](
        describe(
            with_rows_behind(x_RI, tile.block_rows), (tile.block_rows, tile.block_inputs), tile.num_splits
        ),
        describe(weights, weight_block, tile.num_splits),
        *(weight_OI, out_RO),
        *((None, squares_RJ) if is_added else (squares_RJ, None)),
        *(out_RO.stride(0), num_rows, eps),
        IS_ADDED=is_added,
        num_warps=tile.num_warps,
        num_ctas=tile.num_splits,
        **launch_constants(tile, num_outputs, num_inputs, is_gated),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return out_RO


@cache
def launch_constants(tile: HopperTile, num_outputs: int, num_inputs: int, is_gated: bool) -> dict[str, Any]:
    """Return those of the kernel's constants that tile and sizes decide."""
    return {
        "O": num_outputs,
        "BLOCK_O": tile.block_outputs,
        "IS_GATED": is_gated,
        **product_constants(tile, num_inputs),
        **layouts(tile, num_inputs, is_gated=is_gated),
    }


def product_constants(tile: HopperTile, num_inputs: int) -> dict[str, Any]:
    """Return the constants of a product over such inputs, whatever its outputs are."""
    row_buffers, weight_buffers = num_buffers(tile, num_inputs // tile.num_splits // tile.block_inputs)
    return {
        "I": num_inputs,
        "BLOCK_R": tile.block_rows,
        "BLOCK_I": tile.block_inputs,
        "SPLITS": tile.num_splits,
        "ROW_STAGES": row_buffers,
        "WEIGHT_STAGES": weight_buffers,
        "IS_EARLY": tile.is_early,
        "IS_SWAPPED": tile.is_swapped,
    }


def layouts(tile: HopperTile, num_inputs: int, *, is_gated: bool) -> dict[str, Any]:
    """Return how a program's warps hold its tensors.

    Programs of a cluster hold the same, but for what they store: each its own part of the rows.
    """
    whole = [[0, 0] for _ in range(tile.num_splits.bit_length() - 1)]
    parts = [[1 << bit, 0] for bit in range(len(whole))]
    num_columns = 2 * tile.block_outputs if is_gated else tile.block_outputs
    num_first, num_second = tile.block_rows, num_columns
    if tile.is_swapped:
        num_first, num_second = num_second, num_first
    warps_first = min(tile.num_warps, num_first // 16)
    warps = [warps_first, tile.num_warps // warps_first]
    lanes = tile.block_outputs // 8
    num_sums = triton.next_power_of_2(triton.cdiv(num_inputs, 32))
    matrix = [num_columns, tile.block_inputs]
    stored = gl.BlockedLayout([1, 8], [32 // lanes, lanes], [tile.num_warps, 1], [1, 0], parts)
    product = gl.NVMMADistributedLayout([3, 0], warps, [16, num_second // warps[1], 16], whole)
    gate = gl.NVMMADistributedLayout([3, 0], warps, [16, tile.block_outputs // warps[1], 16], whole)
    # A thread gets both halves of a column's pair, gates and ups or a head's, where warps hold one of them.
    is_turned = tile.is_swapped or tile.num_splits > 1 or warps[1] > 1
    squares = gl.BlockedLayout([1, num_sums // 2], [16, 2], [tile.num_warps, 1], [1, 0], parts)
    return {
        "PRODUCT": product,
        "SUMMED": stored if is_turned else product,
        "GATE": stored if is_turned else gate,
        "STORED": stored,
        "SQUARES": squares,
        "MATRIX": _shared(matrix, tile.num_splits),
        "BARRIER": MBarrierLayout([[0] for _ in whole]),
    }


def _shared(block: list[int], num_splits: int) -> Any:
    return gl.NVMMASharedLayout(
        swizzle_byte_width=SWIZZLE_BYTES,
        element_bitwidth=16,
        rank=len(block),
        cga_layout=[[0] * len(block) for _ in range(num_splits.bit_length() - 1)],
    )


def describe(numbers: torch.Tensor, block: tuple[int, ...], num_splits: int) -> Any:
    """Return what the copy engine fills shared memory by, of each program of a cluster its own."""
    return TensorDescriptor.from_tensor(numbers, list(block), _shared(list(block), num_splits))
