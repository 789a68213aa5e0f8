"""The Triton kernel of decode attention: split over the context, joined in the same launch.

A program reads one split of one row's K and V for one KV head; all query heads of the group share
it, padded to 16 rows for tensor cores. Where a row has several splits, the last to finish joins
them, in the order of the splits, so that a row's result depends on nothing but the row. Knows
nothing about requests or graphs.

Shapes: G heads of one KV head, padded to 16 (H: to a power of two), D head dim (padded), P cells of a
tile, J splits of a row, C of them joined at once.
Source: FlashDecoding (Dao et al., 2023) on paged tables (Kwon et al., 2023).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _attend_cells(
    q_GD, key_ptr, value_ptr, table_ptr, start, end, scale_log2, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Return the weighted sum of V over cells [start, end), its weights' sum, and their exponent's base."""
    d = tl.arange(0, q_GD.shape[1])
    p = tl.arange(0, TILE)
    best_G = tl.full((q_GD.shape[0],), float("-inf"), tl.float32)
    sum_G = tl.zeros((q_GD.shape[0],), tl.float32)
    acc_GD = tl.zeros(q_GD.shape, tl.float32)
    block = load_block_ids(table_ptr, start, end, BLOCK_SIZE, TILE)
    for tile_start in tl.range(start, end, TILE, num_stages=NUM_STAGES):
        position_P = tile_start + p
        is_in_P = position_P < end
        next_block = load_block_ids(table_ptr, tile_start + TILE, end, BLOCK_SIZE, TILE)
        if BLOCK_SIZE % TILE == 0:
            cell_P = block.to(tl.int64) * BLOCK_SIZE + tile_start % BLOCK_SIZE + p
        else:
            cell_P = block.to(tl.int64) * BLOCK_SIZE + position_P % BLOCK_SIZE
        offset_PD = (cell_P * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        mask_PD = is_in_P[:, None]
        if q_GD.shape[1] != HEAD_DIM:
            mask_PD = mask_PD & (d < HEAD_DIM)[None, :]
        # Cells past the context may hold NaN: they are never read.
        key_PD = tl.load(key_ptr + offset_PD, mask=mask_PD, other=0.0)
        score_GP = tl.dot(q_GD, tl.trans(key_PD), input_precision="ieee") * scale_log2
        score_GP = tl.where(is_in_P[None, :], score_GP, float("-inf"))
        new_best_G = tl.maximum(best_G, tl.max(score_GP, 1))
        weight_GP = tl.exp2(score_GP - new_best_G[:, None])
        old_weight_G = tl.exp2(best_G - new_best_G)
        value_PD = tl.load(value_ptr + offset_PD, mask=mask_PD, other=0.0)
        acc_GD = acc_GD * old_weight_G[:, None]
        acc_GD += tl.dot(weight_GP.to(value_PD.dtype), value_PD, input_precision="ieee")
        sum_G = sum_G * old_weight_G + tl.sum(weight_GP, 1)
        best_G = new_best_G
        block = next_block
    return acc_GD, sum_G, best_G


@triton.jit
def _join_splits(
    partial_ptr, lse_ptr, num_active,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    NUM_SPLITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return out_GD of one row and KV head: its splits' results, weighted by their sums."""
    g = tl.arange(0, GROUP_PADDED)
    d = tl.arange(0, DIM_PADDED)
    split = tl.arange(0, NUM_SPLITS)
    lse_JG = tl.load(
        lse_ptr + split[:, None] * GROUP + g[None, :],
        mask=(split < num_active)[:, None] & (g < GROUP)[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    # Padded heads have no result: 0 keeps their weights finite.
    best_G = tl.where(g < GROUP, tl.max(lse_JG, 0), 0.0)
    sum_G = tl.where(g < GROUP, tl.sum(tl.exp2(lse_JG - best_G[None, :]), 0), 1.0)
    acc_GD = tl.zeros((GROUP_PADDED, DIM_PADDED), tl.float32)
    for first in tl.range(0, num_active, CHUNK):
        chunk = first + tl.arange(0, CHUNK)
        index_CG = chunk[:, None] * GROUP + g[None, :]
        mask_CG = (chunk < num_active)[:, None] & (g < GROUP)[None, :]
        lse_CG = tl.load(lse_ptr + index_CG, mask=mask_CG, other=float("-inf"), cache_modifier=".cg")
        weight_CG = tl.exp2(lse_CG - best_G[None, :]) / sum_G[None, :]
        part_CGD = tl.load(
            partial_ptr + index_CG[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=mask_CG[:, :, None] & (d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        acc_GD += tl.sum(weight_CG[:, :, None] * part_CGD, 0)
    return acc_GD


@triton.jit
def _leave_result(
    acc_GD, sum_G, best_G, out_ptr, partial_ptr, lse_ptr, counter_ptr, split, num_active,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the result where the row has one split; else leave it, and join all where it is the last."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    g, d = tl.arange(0, acc_GD.shape[0]), tl.arange(0, acc_GD.shape[1])
    mask_GD = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    offset_GD = g[:, None] * HEAD_DIM + d[None, :]
    result_GD = acc_GD / sum_G[:, None]
    if num_active == 1:
        tl.store(out_ptr + offset_GD, result_GD.to(dtype), mask=mask_GD)
    else:
        tl.store(partial_ptr + split * GROUP * HEAD_DIM + offset_GD, result_GD, mask=mask_GD)
        tl.store(lse_ptr + split * GROUP + g, best_G + tl.log2(sum_G), mask=g < GROUP)
        # All threads' stores come before the count, and the count before the last one's loads.
        tl.debug_barrier()
        num_before = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        if num_before == num_active - 1:
            joined_HD = _join_splits(
                partial_ptr, lse_ptr, num_active, GROUP, GROUP_PADDED, HEAD_DIM, acc_GD.shape[1],
                NUM_SPLITS, CHUNK,
            )  # fmt: skip
            h = tl.arange(0, GROUP_PADDED)
            mask_HD = (h < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
            tl.store(out_ptr + h[:, None] * HEAD_DIM + d[None, :], joined_HD.to(dtype), mask=mask_HD)
            tl.store(counter_ptr, 0)


@triton.jit
def paged_decode_kernel(
    q_ptr, key_ptr, value_ptr, table_ptr, lanes_ptr, seq_lens_ptr, out_ptr,
    partial_ptr, lse_ptr, counters_ptr, scale_log2, q_stride, table_stride,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_SPLITS: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, NUM_STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend to one split of one row's context with the heads of one KV head."""
    pair, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, kv_head = pair // NUM_KV_HEADS, pair % NUM_KV_HEADS
    lane = tl.load(lanes_ptr + row).to(tl.int64)
    seq_len = tl.where(lane < 0, 0, tl.load(seq_lens_ptr + row))
    split_len = tl.cdiv(tl.cdiv(seq_len, NUM_SPLITS), TILE) * TILE
    start = split * split_len
    end = tl.minimum(start + split_len, seq_len)
    g, d = tl.arange(0, max(GROUP_PADDED, 16)), tl.arange(0, DIM_PADDED)
    mask_GD = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    offset_GD = (kv_head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    out_row_ptr = out_ptr + row * NUM_KV_HEADS * GROUP * HEAD_DIM
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if start >= end:
        if split == 0:  # a padded row
            zeros_GD = tl.zeros((max(GROUP_PADDED, 16), DIM_PADDED), out_ptr.dtype.element_ty)
            tl.store(out_row_ptr + offset_GD, zeros_GD, mask=mask_GD)
        return
    q_GD = tl.load(q_ptr + row * q_stride + offset_GD, mask=mask_GD, other=0.0)
    acc_GD, sum_G, best_G = _attend_cells(
        q_GD, key_ptr, value_ptr, table_ptr + lane * table_stride, start, end, scale_log2, kv_head,
        BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip
    first_result = pair * NUM_SPLITS * GROUP
    _leave_result(
        acc_GD, sum_G, best_G, out_row_ptr + kv_head * GROUP * HEAD_DIM,
        partial_ptr + first_result * HEAD_DIM, lse_ptr + first_result, counters_ptr + pair,
        split, tl.cdiv(seq_len, split_len), GROUP, GROUP_PADDED, HEAD_DIM, NUM_SPLITS, CHUNK,
    )  # fmt: skip
