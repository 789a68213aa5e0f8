"""The Triton kernel of decode attention: split over the context, joined in the same launch.

A program reads one split of one row's K and V for one KV head; all query heads of the group share
it, padded to 16 rows for tensor cores. Where a row has several splits, the last to finish joins
them. Old cells are on their way before gdc_wait, which stands inside the loop over tiles; a program
whose first tiles hold the new cell waits before them. What is read so early has long been written,
as qkv_decode_kernel tells. Knows nothing about requests or graphs.

Shapes: G heads of one KV head, padded to 16, D head dim (padded).
Source: FlashDecoding (Dao et al., 2023) on paged tables (Kwon et al., 2023).
"""

import triton
import triton.language as tl

from kernels.decode_cells import attend_cells
from kernels.decode_join import leave_result
from kernels.dependent_launch import gdc_wait


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
    QUERIES: tl.constexpr = max(GROUP_PADDED, 16)
    out_ptr += pair * (GROUP * HEAD_DIM)
    if start >= end:
        if PDL:
            gdc_wait()
        if split == 0:  # a padded row
            at = tl.arange(0, GROUP_PADDED * DIM_PADDED)
            tl.store(out_ptr + at, 0.0, mask=at < GROUP * HEAD_DIM)
        return
    is_new = (end == seq_len) & (end - start <= TILE * (NUM_STAGES - 1))
    if PDL and is_new:
        gdc_wait()  # the new cell is of the tiles that are loaded first
    acc_GD, sum_GP, best_G = attend_cells(
        q_ptr + row * q_stride + kv_head * GROUP * HEAD_DIM, key_ptr, value_ptr,
        table_ptr + lane * table_stride, start, end, scale_log2, kv_head,
        BLOCK_SIZE, NUM_KV_HEADS, GROUP, QUERIES, HEAD_DIM, DIM_PADDED, TILE, NUM_STAGES, PDL,
    )  # fmt: skip
    leave_result(
        acc_GD, sum_GP, best_G, out_ptr, partial_ptr, lse_ptr, counters_ptr,
        pair, split, tl.cdiv(seq_len, split_len), GROUP, GROUP_PADDED, HEAD_DIM, NUM_SPLITS, CHUNK,
    )  # fmt: skip
