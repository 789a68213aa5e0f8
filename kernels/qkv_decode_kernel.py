"""The Triton kernel that takes decode rows from the QKV projection to attention's output: one launch.

As paged_decode_kernel, but a program first normalizes and rotates its group's query heads. The program
that has a row's last split does so with the new key, too, stores it and the new value, and attends to
that cell from registers: nobody reads the new cell from memory, so splits need not wait for each other.

Old cells are on their way before gdc_wait. That is why the heads are made ready inside the loop over
tiles: the compiler starts the loads of the first tiles in front of it. What is read so early has long
been written: lane, length, slot and table by the first kernels of a step, old cells by earlier steps.
Between those and this launch stands a kernel that starts only after them (in a step the embedding
lookup, which is launched without dependence; and every layer's launch of this kernel, which waits before
it lets the next one start).

Knows nothing about requests or graphs.

Shapes: G heads of one KV head, padded to as many as warps, D head dim (padded), P cells of a tile.
Source: FlashDecoding (Dao et al., 2023) on paged tables (Kwon et al., 2023); RoFormer (Su et al., 2021).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids
from kernels.decode_cells import add_tile, head_numbers, mask_tile, place_cells, shift_tile, weigh_tile
from kernels.decode_join import leave_result
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _load_halves(at, h, mask, HEAD_DIM: tl.constexpr):
    """Return a head's halves in float32: RoPE rotates the one with the other."""
    low = tl.load(at + h, mask=mask, other=0.0).to(tl.float32)
    return low, tl.load(at + HEAD_DIM // 2 + h, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _load_norm(weight_ptr, g0, h, mask, HEAD_DIM: tl.constexpr):
    """Return the norm's weights as _load_halves does, the same for each head; ones where there is no norm."""
    low, high = 1.0, 1.0
    if weight_ptr is not None:
        low, high = _load_halves(weight_ptr + g0, h, mask, HEAD_DIM)
    return low, high


@triton.jit
def _rotate(x, norm, cos, sin, eps, HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr):
    """Return halves of heads normalized and rotated, in float32, as qk_norm_rope_store does it."""
    low, high = x
    if HAS_NORM:
        scale_G1 = 1.0 / tl.sqrt(tl.sum(low * low + high * high, 1) / HEAD_DIM + eps)[:, None]
        low, high = low * scale_G1 * norm[0], high * scale_G1 * norm[1]
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _join_halves(low, high):
    """Return heads whole."""
    return tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), (low.shape[0], 2 * low.shape[1]))


@triton.jit
def _take_new_cell(
    qkv_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_ptr, value_ptr, cell, kv_head, has_cell,
    scale_log2, eps, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_PADDED: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Make the heads ready; return the queries, and attention's state with the new cell in it, or empty.

    Where the program has the cell, store it, unless it is negative. What all heads share is loaded for
    each of them: then no number changes its thread, which would take barriers.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    g, h = tl.arange(0, GROUP_PADDED)[:, None], tl.arange(0, DIM_PADDED // 2)[None, :]
    d, is_in = head_numbers(HEAD_DIM, DIM_PADDED)
    g0, mask = g * 0, (g < GROUP) & (h < HALF)
    q_norm = _load_norm(q_weight_ptr, g0, h, mask, HEAD_DIM)
    k_norm = _load_norm(k_weight_ptr, g0, h, mask, HEAD_DIM)
    cos = tl.load(cos_sin_ptr + g0 + h, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(cos_sin_ptr + HALF + g0 + h, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    new_ptr = qkv_ptr + (NUM_KV_HEADS * GROUP + kv_head) * HEAD_DIM
    q = _load_halves(qkv_ptr + (kv_head * GROUP + g) * HEAD_DIM, h, mask, HEAD_DIM)
    k = _load_halves(new_ptr + g0, h, mask, HEAD_DIM)
    value_1D = tl.load(new_ptr + NUM_KV_HEADS * HEAD_DIM + d[None, :], mask=is_in[None, :], other=0.0)
    dtype = key_ptr.dtype.element_ty
    q_low, q_high = _rotate(q, q_norm, cos, sin, eps, HEAD_DIM, q_weight_ptr is not None)
    k_low, k_high = _rotate(k, k_norm, cos, sin, eps, HEAD_DIM, k_weight_ptr is not None)
    q_low, q_high, k_low, k_high = q_low.to(dtype), q_high.to(dtype), k_low.to(dtype), k_high.to(dtype)
    at = (cell * NUM_KV_HEADS + kv_head) * HEAD_DIM
    is_stored = has_cell & (cell >= 0)
    tl.store(key_ptr + g0 + at + h, k_low, mask=mask & is_stored & (g == 0))
    tl.store(key_ptr + g0 + at + HALF + h, k_high, mask=mask & is_stored & (g == 0))
    tl.store(value_ptr + at + d[None, :], value_1D, mask=is_in[None, :] & is_stored)
    products = q_low.to(tl.float32) * k_low.to(tl.float32) + q_high.to(tl.float32) * k_high.to(tl.float32)
    score_G = tl.sum(products, 1) * scale_log2
    is_first_GP = tl.full((GROUP_PADDED, TILE), 0, tl.int32) + tl.arange(0, TILE)[None, :] == 0
    sum_GP = tl.where(is_first_GP & has_cell, 1.0, 0.0)
    q_GD = _join_halves(q_low, q_high)
    acc_GD = tl.full(q_GD.shape, 0.0, tl.float32) + tl.where(has_cell, value_1D.to(tl.float32), 0.0)
    return q_GD, acc_GD, sum_GP, tl.where(has_cell, score_G, float("-inf"))


@triton.jit
def _attend_split(
    qkv_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_ptr, value_ptr, table_ptr, cell, kv_head,
    has_cell, start, end, scale_log2, eps,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_PADDED: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr, NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Return attention's state over cells [start, end), and the new one where the program has it."""
    q_GD = tl.full((GROUP_PADDED, DIM_PADDED), 0.0, key_ptr.dtype.element_ty)
    acc_GD = tl.full((GROUP_PADDED, DIM_PADDED), 0.0, tl.float32)
    sum_GP = tl.full((GROUP_PADDED, TILE), 0.0, tl.float32)
    best_G = tl.full((GROUP_PADDED,), 0.0, tl.float32)
    place_PD = place_cells(kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, DIM_PADDED, TILE)
    key_at_PD, value_at_PD = key_ptr + place_PD, value_ptr + place_PD
    block = load_block_ids(table_ptr, start, end, BLOCK_SIZE, TILE)
    for tile_start in tl.range(start, tl.maximum(end, start + 1), TILE, num_stages=NUM_STAGES):
        next_block = load_block_ids(table_ptr, tile_start + TILE, end, BLOCK_SIZE, TILE)
        shift = shift_tile(block, tile_start, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE)
        mask_PD = mask_tile(tile_start, end, HEAD_DIM, DIM_PADDED, TILE)
        key_PD = tl.load(key_at_PD + shift, mask=mask_PD, other=0.0)
        value_PD = tl.load(value_at_PD + shift, mask=mask_PD, other=0.0)
        if tile_start == start:
            q_GD, acc_GD, sum_GP, best_G = _take_new_cell(
                qkv_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_ptr, value_ptr, cell, kv_head,
                has_cell, scale_log2, eps, NUM_KV_HEADS, GROUP, HEAD_DIM, GROUP_PADDED, DIM_PADDED,
                TILE, PDL,
            )  # fmt: skip
        weight_GP, best_G, factor_G = weigh_tile(q_GD, key_PD, best_G, tile_start, end, scale_log2, TILE)
        acc_GD, sum_GP = add_tile(acc_GD, sum_GP, weight_GP, value_PD, factor_G)
        block = next_block
    return acc_GD, sum_GP, best_G


@triton.jit(do_not_specialize=["min_tiles"])
def qkv_decode_kernel(
    qkv_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_ptr, value_ptr, slots_ptr, table_ptr,
    lanes_ptr, seq_lens_ptr, out_ptr, partial_ptr, lse_ptr, counters_ptr,
    scale_log2, eps, qkv_stride, cos_sin_stride, table_stride, min_tiles,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, NUM_STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend to one split of one row's old cells, the last one to the new cell as well."""
    pair, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, kv_head = pair // NUM_KV_HEADS, pair % NUM_KV_HEADS
    # slots are int64: their products pass 2**31 in a large cache.
    lane, slot = tl.load(lanes_ptr + row).to(tl.int64), tl.load(slots_ptr + row)
    seq_len = tl.where(lane < 0, 0, tl.load(seq_lens_ptr + row))
    num_old = tl.maximum(seq_len - 1, 0)
    split_len = tl.maximum(tl.cdiv(tl.cdiv(num_old, NUM_SPLITS), TILE), min_tiles) * TILE
    start = split * split_len
    out_ptr += pair * (GROUP * HEAD_DIM)
    if (split > 0) & (start >= num_old):
        return
    if seq_len == 0:  # a padded row
        if PDL:
            gdc_wait()
        at = tl.arange(0, GROUP_PADDED * DIM_PADDED)
        tl.store(out_ptr + at, 0.0, mask=at < GROUP * HEAD_DIM)
        return
    acc_GD, sum_GP, best_G = _attend_split(
        qkv_ptr + row * qkv_stride, cos_sin_ptr + num_old.to(tl.int64) * cos_sin_stride, q_weight_ptr,
        k_weight_ptr, key_ptr, value_ptr, table_ptr + lane * table_stride, slot, kv_head,
        start + split_len >= num_old, start, tl.minimum(start + split_len, num_old), scale_log2, eps,
        BLOCK_SIZE, NUM_KV_HEADS, GROUP, HEAD_DIM, ROWS, DIM_PADDED, TILE, NUM_STAGES, PDL,
    )  # fmt: skip
    leave_result(
        acc_GD, sum_GP, best_G, out_ptr, partial_ptr, lse_ptr, counters_ptr, pair, split,
        tl.maximum(tl.cdiv(num_old, split_len), 1), GROUP, GROUP_PADDED, HEAD_DIM, NUM_SPLITS, CHUNK,
    )  # fmt: skip
