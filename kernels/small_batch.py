"""Projections of 1 to 32 rows, fused with what stands around them: norm in front, gate or sum behind.

A few rows are bound by reading the weights, and by how long a kernel takes to start: so each launch
does more, and may start early. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F: gate rows, then up rows.
"""

import torch
import triton

from kernels.dependent_launch import can_depend, launch_options
from kernels.gpu import HOPPER_SHARED_BYTES, shared_bytes
from kernels.small_batch_dot import small_batch_dot_kernel
from kernels.small_batch_kernel import small_batch_kernel
from kernels.small_batch_ref import (
    MAX_INPUTS,
    MAX_ROWS,
    check_small_batch,
    max_inputs,
    num_gated,
)
from kernels.small_batch_tiles import Tile, choose_tile
from kernels.tiled_config import is_large_weight

__all__ = [
    "MAX_INPUTS",
    "MAX_ROWS",
    "MAX_ROWS_WITHOUT_DOT",
    "Tile",
    "can_fuse",
    "choose_tile",
    "linear_add",
    "norm_gate_up_silu",
    "norm_linear",
]

MAX_ROWS_WITHOUT_DOT = 8
"""More rows would not fit the registers of small_batch_kernel."""
MAX_CHUNK = 2048
"""Inputs that a program of small_batch_dot_kernel multiplies at once."""
MAX_DOT_BYTES = 200 << 10
"""Of rows, and of weights where they lie beside them, in a Hopper's shared memory."""
MIN_DOT = 16
"""Inputs and, not swapped, rows of the smallest product that tensor cores do."""
MIN_SWAPPED_ROWS = 8
"""Of the smallest product that is swapped."""
MAX_TENSOR_CORE_BYTES = 2
"""Of a number that tensor cores multiply exactly."""
MAX_ROWS_OF_LARGE = 16
"""Of a large weight: each program reads all rows, where tiles share them. The output projection of 8B on one
of two ranks takes 11.0 us at 32 rows, and 8.1 tiled."""


def norm_linear(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_OI: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    bias_O: torch.Tensor | None = None,
    is_normed: bool | None = None,
    is_dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Return rms_norm(x) @ weight.T + bias.

    Args:
        x_RI: at most MAX_ROWS rows, which may be strided.
        norm_weight_I: of the norm. None: it is in the weight, or there is no norm.
        weight_OI: contiguous, of x's dtype.
        eps: added to the mean of squares.
        out: (R, O), of any float dtype. None: allocated, of x's dtype.
        bias_O: added to the product.
        is_normed: whether there is a norm. None: where there is a norm's weight.
        is_dependent: let it start while the kernel before it runs, where the device can.
        tile: instead of choose_tile's.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    out_RO = x_RI.new_empty((len(x_RI), len(weight_OI))) if out is None else out
    check_small_batch(x_RI, weight_OI, norm_weight_I, bias_O, out_RO, len(weight_OI))
    return _launch(
        *(x_RI, norm_weight_I, weight_OI, bias_O, out_RO, eps),
        is_normed=norm_weight_I is not None if is_normed is None else is_normed,
        is_dependent=is_dependent,
        tile=tile,
    )


def linear_add(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    residual_RO: torch.Tensor,
    *,
    bias_O: torch.Tensor | None = None,
    is_dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Add x @ weight.T + bias to the residual, in place, and return it; arguments as norm_linear's."""
    check_small_batch(x_RI, weight_OI, None, bias_O, residual_RO, len(weight_OI))
    return _launch(
        *(x_RI, None, weight_OI, bias_O, residual_RO, 0.0),
        is_added=True,
        is_dependent=is_dependent,
        tile=tile,
    )


def norm_gate_up_silu(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_XI: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    is_normed: bool | None = None,
    is_dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Return out_RF = silu(gate) * up of the normalized x; arguments as norm_linear's."""
    F = num_gated(weight_XI)
    out_RF = x_RI.new_empty((len(x_RI), F)) if out is None else out
    check_small_batch(x_RI, weight_XI, norm_weight_I, None, out_RF, F)
    return _launch(
        *(x_RI, norm_weight_I, weight_XI, None, out_RF, eps),
        is_normed=norm_weight_I is not None if is_normed is None else is_normed,
        is_gated=True,
        is_dependent=is_dependent,
        tile=tile,
    )


def can_fuse(
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    *,
    itemsize_bytes: int,
    most_bytes: int = HOPPER_SHARED_BYTES,
) -> bool:
    """Whether this module takes so many rows with the tile that it chooses, and as fast as tiles would.

    Args:
        num_rows: of x.
        num_outputs: rows of the weight.
        num_inputs: of the weight.
        itemsize_bytes: of one weight.
        most_bytes: of shared memory that a program can have.
    """
    most_rows = MAX_ROWS_OF_LARGE if is_large_weight(num_outputs, num_inputs) else MAX_ROWS
    if num_rows > most_rows or num_inputs > max_inputs(num_rows):
        return False
    # The tile of one row knows how many outputs there are.
    tile = choose_tile(num_outputs if num_rows == 1 else 1, num_inputs, num_rows=num_rows)
    num_bytes = _dot_bytes(tile, num_rows, num_inputs, itemsize_bytes)
    return not tile.is_dot or num_bytes <= min(MAX_DOT_BYTES, most_bytes)


def _dot_bytes(tile: Tile, num_rows: int, num_inputs: int, itemsize_bytes: int) -> int:
    """Return what the rows take, and the weights of gates and ups: beside them, or before them.

    Weights lie in registers where they can, and go there through shared memory. Tensor cores do not multiply
    float32: what does reads both sides from shared memory.
    """
    chunk = _chunk(num_inputs)
    num_numbers: int = triton.cdiv(num_inputs, chunk) * chunk
    is_weight_held = tile.is_swapped or itemsize_bytes > MAX_TENSOR_CORE_BYTES
    rows, weights = _block_rows(tile, num_rows), 2 * tile.num_outputs
    return (rows + weights if is_weight_held else max(rows, weights)) * num_numbers * itemsize_bytes


def _block_rows(tile: Tile, num_rows: int) -> int:
    least = MIN_SWAPPED_ROWS if tile.is_swapped else MIN_DOT
    return max(least, int(triton.next_power_of_2(num_rows)))


def _chunk(num_inputs: int) -> int:
    """Return how many inputs are multiplied at once: not so many that some would be padding."""
    is_whole = num_inputs % MAX_CHUNK == 0
    return min(int(triton.next_power_of_2(num_inputs)), MAX_CHUNK if is_whole else MAX_CHUNK // 2)


def _launch(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    out_RO: torch.Tensor,
    eps: float,
    *,
    is_normed: bool = False,
    is_gated: bool = False,
    is_added: bool = False,
    is_dependent: bool,
    tile: Tile | None,
) -> torch.Tensor:
    (num_rows, num_inputs), num_outputs = x_RI.shape, out_RO.shape[1]
    tile = tile or choose_tile(num_outputs, num_inputs, num_rows=num_rows, is_gated=is_gated)
    kernel = small_batch_dot_kernel if tile.is_dot else small_batch_kernel
    kernel[(triton.cdiv(num_outputs, tile.num_outputs),)](
        *(x_RI, norm_weight_I, weight_OI, bias_O, out_RO, x_RI.stride(0), out_RO.stride(0), eps),
        R=num_rows,
        I=num_inputs,
        O=num_outputs,
        BLOCK_O=tile.num_outputs,
        IS_NORMED=is_normed,
        IS_GATED=is_gated,
        IS_ADDED=is_added,
        num_warps=tile.num_warps,
        **_blocks(tile, x_RI),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return out_RO


def _blocks(tile: Tile, x_RI: torch.Tensor) -> dict[str, int]:
    """Return the sizes that only one of the kernels knows."""
    num_rows, num_inputs = x_RI.shape
    block_i = triton.next_power_of_2(num_inputs)
    if not tile.is_dot:
        if num_rows > MAX_ROWS_WITHOUT_DOT:
            raise ValueError(
                f"{num_rows} rows need a tile with is_dot; without at most {MAX_ROWS_WITHOUT_DOT}"
            )
        if num_inputs > MAX_INPUTS:  # not so many at once that some would be padding
            block_i = min(block_i, MAX_CHUNK)
        return {"BLOCK_I": block_i, "CHUNKS": triton.cdiv(num_inputs, block_i)}
    most_bytes = min(MAX_DOT_BYTES, shared_bytes(x_RI.device))
    if _dot_bytes(tile, num_rows, num_inputs, x_RI.itemsize) > most_bytes:
        raise ValueError(f"{num_rows} rows of {num_inputs} {x_RI.dtype} take more than {most_bytes} bytes")
    return {
        "BLOCK_R": _block_rows(tile, num_rows),
        "SLICES": tile.num_warps,
        "SLICE": max(MIN_DOT, _chunk(num_inputs) // tile.num_warps),
        "IS_SWAPPED": tile.is_swapped,
    }
