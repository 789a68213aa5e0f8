"""From rows of the residual to queries, and to keys and values in their cache slots, in one launch.

Norm, QKV projection, the heads' norms, RoPE and KV store: what norm_linear and qk_norm_rope_store do in
two, for some dozens to hundreds of rows; by hopper_heads where that fits. Knows nothing about models.

Shapes: R rows, I inputs, O = (H + 2 * K) * D outputs, J sums of squares of a row, H query heads, K KV heads,
D head dim, N blocks, S block size.
"""

from dataclasses import replace
from typing import Any

import torch
import triton

from kernels.dependent_launch import can_depend, launch_options
from kernels.hopper_heads import can_hold_heads, hopper_heads
from kernels.hopper_tiles import HopperTile, choose_head_tile
from kernels.qk_norm_rope_ref import check_qk_norm_rope_store, qk_norm_rope_store_ref
from kernels.qkv_rows import QkvRows
from kernels.qkv_store_kernel import qkv_store_kernel
from kernels.row_squares import check_squares
from kernels.rows_behind import with_rows_behind
from kernels.small_batch_ref import check_projection, norm_linear_ref
from kernels.tiled_config import ProjectionTile, fit_stages
from kernels.tiled_projection import is_aligned, tile_source

__all__ = ["choose_qkv_tile", "qkv_store", "qkv_store_ref"]

# By the most rows: best of two or three each in a layer of Qwen3-0.6B with its attention, bf16, on an H200:
# 2.9, 1.7 and 2.3 us less than by two launches at 64, 128 and 256 rows of 200 to 1,000 tokens.
_TILES = (
    (64, ProjectionTile(block_rows=16, block_outputs=128, block_inputs=128, is_swapped=True)),
    (128, ProjectionTile(block_rows=32, block_outputs=128, block_inputs=128, is_swapped=True)),
    (256, ProjectionTile(block_rows=64, block_outputs=128, block_inputs=64, num_stages=5)),
)
MIN_PROGRAMS = 96
"""Fewer leave too many of an H200's 132 multiprocessors idle."""
MIN_ROWS = 33
HEAD_DIMS = (64, 128)
"""Of which a tile can hold one head."""


def choose_qkv_tile(
    num_rows: int, *, num_all_heads: int, head_dim: int, itemsize_bytes: int
) -> ProjectionTile | None:
    """Return the launch's shape, or None where the projection and qk_norm_rope_store are the better way.

    Args:
        num_rows: padding included.
        num_all_heads: query, key and value heads of this rank.
        head_dim: of the model.
        itemsize_bytes: of one weight.
    """
    tile = next((tile for most_rows, tile in _TILES if MIN_ROWS <= num_rows <= most_rows), None)
    if tile is None or head_dim not in HEAD_DIMS or itemsize_bytes != 2:
        return None
    if -(-num_rows // tile.block_rows) * num_all_heads < MIN_PROGRAMS:
        return None
    return replace(tile, block_outputs=head_dim)


def qkv_store(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    eps: float,
    rows: QkvRows,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    *,
    squares_RJ: torch.Tensor,
    tile: ProjectionTile,
    bias_O: torch.Tensor | None = None,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Write keys and values of rms_norm(x) into their slots; return the query heads, ready for attention.

    Args:
        x_RI: rows may be strided.
        weight_OI: contiguous, of x's dtype; the norm's weight is in it.
        eps: added to the mean of x's squares.
        rows: where heads go; its qkv_TX is neither read nor written.
        key_cache_NSKD: contiguous, of x's dtype.
        value_cache_NSKD: like key_cache_NSKD.
        squares_RJ: x's sums of squares, as linear_add and sum_squares write them.
        tile: from choose_qkv_tile; its outputs are one head, and inputs are not split. Where hopper_heads
            can take such heads, it does, by a tile of its own.
        bias_O: added to the product.
        is_dependent: let it start while the kernel before it runs, where the device can. Positions and
            slots are then read early: what wrote them must have ended before that one began.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    num_rows, H, D = rows.q_THD.shape
    K = key_cache_NSKD.shape[2]
    heads = (rows.positions_T, rows.cos_sin_PD, rows.q_norm_D, rows.k_norm_D)
    targets = (key_cache_NSKD, value_cache_NSKD, rows.slot_mapping_T, rows.q_THD)
    check_projection(x_RI, weight_OI, None, bias_O, rows.qkv_TX, len(weight_OI))
    check_squares(squares_RJ, num_rows, x_RI.shape[1])
    check_qk_norm_rope_store(rows.qkv_TX, *heads, *targets, H, K)
    _check_tile(tile, D)
    caches, held = (key_cache_NSKD, value_cache_NSKD), _held_tile(x_RI, weight_OI, rows, bias_O)
    if held is not None:
        options: dict[str, Any] = {"squares_RJ": squares_RJ, "is_dependent": is_dependent}
        return hopper_heads(x_RI, weight_OI, eps, rows, *caches, tile=held, **options)
    return _launch(x_RI, weight_OI, bias_O, eps, rows, *caches, squares_RJ, tile, is_dependent)


def _launch(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    eps: float,
    rows: QkvRows,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    squares_RJ: torch.Tensor,
    tile: ProjectionTile,
    is_dependent: bool,
) -> torch.Tensor:
    num_rows, H, D = rows.q_THD.shape
    K = key_cache_NSKD.shape[2]
    tile = fit_stages(tile, x_RI.device, itemsize_bytes=x_RI.itemsize)
    can_copy = is_aligned(x_RI) and is_aligned(weight_OI)
    qkv_store_kernel[(triton.cdiv(num_rows, tile.block_rows) * (H + 2 * K),)](
        *_sources(x_RI, weight_OI, tile, is_tma=tile.is_tma and can_copy),
        *(weight_OI, bias_O, squares_RJ, rows.positions_T, rows.cos_sin_PD, rows.q_norm_D, rows.k_norm_D),
        *(key_cache_NSKD, value_cache_NSKD, rows.slot_mapping_T, rows.q_THD),
        *(x_RI.stride(0), rows.cos_sin_PD.stride(0), rows.q_THD.stride(0), num_rows, eps, rows.eps),
        **{"I": x_RI.shape[1], "H": H, "K": K, "D": D},
        **_constants(tile, can_copy=can_copy),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return rows.q_THD


def _held_tile(
    x_RI: torch.Tensor, weight_OI: torch.Tensor, rows: QkvRows, bias_O: torch.Tensor | None
) -> HopperTile | None:
    """Return the tile of hopper_heads, or None where it does not fit."""
    if not can_hold_heads(x_RI, weight_OI, rows, bias_O):
        return None
    return choose_head_tile(*weight_OI.shape, num_rows=len(x_RI))


def _sources(x_RI: torch.Tensor, weight_OI: torch.Tensor, tile: ProjectionTile, *, is_tma: bool) -> list[Any]:
    x_RI = with_rows_behind(x_RI, tile.block_rows)
    return [
        tile_source(x_RI, (tile.block_rows, tile.block_inputs), is_tma),
        tile_source(weight_OI, (tile.block_outputs, tile.block_inputs), is_tma),
    ]


def _constants(tile: ProjectionTile, *, can_copy: bool) -> dict[str, Any]:
    return {
        "BLOCK_R": tile.block_rows,
        "BLOCK_I": tile.block_inputs,
        "STAGES": tile.num_stages,
        "IS_SWAPPED": tile.is_swapped,
        "IS_TMA": tile.is_tma and can_copy,
        "IS_READ_AHEAD": can_copy,
        "IS_EARLY": tile.is_early,
        "num_warps": tile.num_warps,
    }


def _check_tile(tile: ProjectionTile, head_dim: int) -> None:
    if tile.block_outputs != head_dim or tile.num_splits > 1:
        raise ValueError(
            f"a tile of {tile.block_outputs} outputs, {tile.num_splits} splits, holds no head of {head_dim}"
        )


def qkv_store_ref(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    eps: float,
    rows: QkvRows,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    *,
    bias_O: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the query heads and write the caches in plain PyTorch; see qkv_store."""
    qkv_RO = norm_linear_ref(x_RI, torch.ones_like(x_RI[0]), weight_OI, eps, bias_O=bias_O).to(x_RI.dtype)
    return qk_norm_rope_store_ref(
        qkv_RO, rows.positions_T, rows.cos_sin_PD, rows.q_norm_D, rows.k_norm_D, rows.eps,
        key_cache_NSKD, value_cache_NSKD, rows.slot_mapping_T, rows.q_THD.shape[1], key_cache_NSKD.shape[2],
    )  # fmt: skip
