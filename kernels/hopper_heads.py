"""Launches the QKV projection of some dozens to hundreds of rows on a Hopper GPU, up to what attention reads.

Knows nothing about models.

Shapes: R rows, I inputs, O = (H + 2 * K) * D outputs, H query heads, K KV heads, D head dim: 128, J sums of
squares of a row, N blocks, S block size.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import triton

from kernels.dependent_launch import can_depend, launch_options
from kernels.gluon_kernels import hopper_heads_kernel, runs_gluon
from kernels.hopper_projection import describe, layouts, product_constants
from kernels.hopper_tiles import HEAD_DIM, HopperTile
from kernels.qkv_rows import QkvRows
from kernels.rows_behind import with_rows_behind
from kernels.tiled_projection import is_aligned


def can_hold_heads(
    x_RI: torch.Tensor, weight_OI: torch.Tensor, rows: QkvRows, bias_O: torch.Tensor | None
) -> bool:
    """Tell whether hopper_heads fits such tensors and their device."""
    if bias_O is not None or weight_OI.dtype != torch.bfloat16 or not runs_gluon(weight_OI.device):
        return False
    have_place = rows.q_THD.shape[2] == HEAD_DIM and rows.cos_sin_PD.is_contiguous()
    return have_place and is_aligned(x_RI) and is_aligned(weight_OI)


def hopper_heads(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    eps: float,
    rows: QkvRows,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    *,
    squares_RJ: torch.Tensor,
    tile: HopperTile,
    is_dependent: bool,
) -> torch.Tensor:
    """Do what qkv_store does, which checks its arguments, where can_hold_heads.

    Args:
        x_RI: rows may be strided.
        weight_OI: contiguous; the norm's weight is in it.
        eps: added to the mean of x's squares.
        rows: where heads go.
        key_cache_NSKD: contiguous.
        value_cache_NSKD: like key_cache_NSKD.
        squares_RJ: x's sums of squares.
        tile: from choose_head_tile.
        is_dependent: let it start while the kernel before it runs, where the device can.
    """
    (num_rows, num_inputs), (_, H, _) = x_RI.shape, rows.q_THD.shape
    K = key_cache_NSKD.shape[2]
    x_RI, splits = with_rows_behind(x_RI, tile.block_rows), tile.num_splits
    hopper_heads_kernel[(triton.cdiv(num_rows, tile.block_rows) * (H + 2 * K),)](
        describe(x_RI, (tile.block_rows, tile.block_inputs), splits),
        describe(weight_OI, (HEAD_DIM, tile.block_inputs), splits),
        *(weight_OI, squares_RJ, rows.positions_T, rows.cos_sin_PD, rows.q_norm_D, rows.k_norm_D),
        *(key_cache_NSKD, value_cache_NSKD, rows.slot_mapping_T, rows.q_THD, rows.q_THD.stride(0)),
        *(num_rows, eps, rows.eps),
        H=H,
        K=K,
        num_warps=tile.num_warps,
        num_ctas=splits,
        **head_constants(tile, num_inputs),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return rows.q_THD


@cache
def head_constants(tile: HopperTile, num_inputs: int) -> dict[str, Any]:
    """Return those of the kernel's constants that tile and sizes decide."""
    # A head's halves lie as gates and ups do.
    held = layouts(replace(tile, block_outputs=HEAD_DIM // 2), num_inputs, is_gated=True)
    held["HALF"] = held.pop("GATE")
    return product_constants(tile, num_inputs) | held
