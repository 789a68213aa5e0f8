"""Projections of 1 to 32 rows, fused with what stands around them: norm in front, gate or sum behind.

A few rows are bound by reading the weights, and by how long a kernel takes to start: so each launch
does more, and may start early. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F: gate rows, then up rows.
"""

from dataclasses import dataclass

import torch
import triton

from kernels.dependent_launch import can_depend, launch_options
from kernels.small_batch_dot import small_batch_dot_kernel
from kernels.small_batch_kernel import small_batch_kernel
from kernels.small_batch_ref import MAX_INPUTS, MAX_ROWS, check_small_batch, num_gated

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
MAX_CHUNK = 1024
"""Inputs that a program of small_batch_dot_kernel multiplies at once."""
MAX_DOT_BYTES = 200 << 10
"""Of the rows in a Hopper's shared memory, where small_batch_dot_kernel multiplies them."""
MIN_DOT = 16
"""Rows and inputs of the smallest product that tensor cores do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a projection is cut into programs."""

    num_outputs: int
    """Of one program."""
    num_warps: int
    is_dot: bool
    """By small_batch_dot_kernel."""


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


def can_fuse(num_rows: int, num_inputs: int, *, itemsize_bytes: int) -> bool:
    """Whether this module takes so many rows of so many inputs with the tile that it chooses."""
    tile = choose_tile(1, num_inputs, num_rows=num_rows)
    is_small = num_rows <= MAX_ROWS and num_inputs <= MAX_INPUTS
    return is_small and (not tile.is_dot or _dot_bytes(num_rows, num_inputs, itemsize_bytes) <= MAX_DOT_BYTES)


def _dot_bytes(num_rows: int, num_inputs: int, itemsize_bytes: int) -> int:
    chunk = min(triton.next_power_of_2(num_inputs), MAX_CHUNK)
    block_r = max(MIN_DOT, triton.next_power_of_2(num_rows))
    num_chunks: int = triton.cdiv(num_inputs, chunk)
    return int(block_r * num_chunks * chunk * itemsize_bytes)


def choose_tile(num_outputs: int, num_inputs: int, *, num_rows: int) -> Tile:
    """Return small programs, so that all of the card reads at once.

    What measured best on an H200 at Qwen3-0.6B's shapes (benchmarks/kernels/small_batch.py --tune).
    """
    is_large = num_outputs >= 32768
    block_i = triton.next_power_of_2(num_inputs)
    # Few inputs: tensor cores win from 3 rows on (qkv at 8 rows 4.7 us, without them 7.2 at 4).
    if num_rows > 4 or (num_rows > 2 and block_i <= MAX_CHUNK and not is_large):
        if block_i <= MAX_CHUNK:
            return Tile(num_outputs=16, num_warps=4, is_dot=True)
        return Tile(num_outputs=8, num_warps=4 if num_rows > 8 and num_inputs <= 2048 else 8, is_dot=True)
    if is_large and block_i <= MAX_CHUNK:
        return (
            Tile(num_outputs=16, num_warps=8, is_dot=False)
            if num_rows == 1
            else Tile(num_outputs=4, num_warps=1, is_dot=False)
        )
    # 32 to 64 weights a thread.
    num_warps = min(max(block_i // (256 if block_i <= MAX_CHUNK else 512), 1), 8)
    return Tile(num_outputs=4, num_warps=num_warps, is_dot=False)


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
    tile = tile or choose_tile(num_outputs, num_inputs, num_rows=num_rows)
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
        return {"BLOCK_I": block_i}
    if _dot_bytes(num_rows, num_inputs, x_RI.itemsize) > MAX_DOT_BYTES:
        raise ValueError(f"{num_rows} rows of {num_inputs} {x_RI.dtype} take more than {MAX_DOT_BYTES} bytes")
    return {
        "BLOCK_R": max(MIN_DOT, triton.next_power_of_2(num_rows)),
        "SLICES": tile.num_warps,
        "SLICE": max(MIN_DOT, min(block_i, MAX_CHUNK) // tile.num_warps),
    }
