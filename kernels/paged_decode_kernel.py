"""The Triton kernel of decode attention: split over the context, joined in the same launch.

A program reads one split of one row's K and V for one KV head; all query heads of the group share
it, padded to 16 rows for tensor cores. Where a row has several splits, the last to finish joins
them. Knows nothing about requests or graphs.

Shapes: G heads of one KV head, padded to 16, D head dim (padded).
Source: FlashDecoding (Dao et al., 2023) on paged tables (Kwon et al., 2023).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids
from kernels.decode_cells import attend_cells
from kernels.decode_join import leave_result
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def paged_decode_kernel(
    q_ptr, key_ptr, value_ptr, table_ptr, lanes_ptr, seq_lens_ptr, order_ptr, out_ptr,
    partial_ptr, lse_ptr, counters_ptr, scale_log2, q_stride, table_stride,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_SPLITS: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, NUM_STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend to one split of one row's context with the heads of one KV head."""
    pair, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, kv_head = pair // NUM_KV_HEADS, pair % NUM_KV_HEADS
    if order_ptr is not None:
        row = tl.load(order_ptr + row).to(tl.int64)
        pair = row * NUM_KV_HEADS + kv_head
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
    table_ptr += lane * table_stride
    acc_GD, sum_GP, best_G = attend_cells(
        q_GD,
        tl.zeros(q_GD.shape, tl.float32),
        tl.zeros((q_GD.shape[0], TILE), tl.float32),
        tl.full((q_GD.shape[0],), float("-inf"), tl.float32),
        key_ptr, value_ptr, table_ptr, load_block_ids(table_ptr, start, end, BLOCK_SIZE, TILE),
        start, end, scale_log2, kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip
    leave_result(
        acc_GD, sum_GP, best_G, out_row_ptr + kv_head * GROUP * HEAD_DIM, partial_ptr, lse_ptr, counters_ptr,
        pair, split, tl.cdiv(seq_len, split_len), GROUP, GROUP_PADDED, HEAD_DIM, NUM_SPLITS, CHUNK,
    )  # fmt: skip
