"""The Triton kernel that takes decode rows from the QKV projection to attention's output: one launch.

As paged_decode_kernel, but a program first normalizes and rotates its group's query heads. The program
that has a row's last split does so with the new key, too, stores it and the new value, and attends to
that cell from registers: nobody reads the new cell from memory, so splits need not wait for each other.

What a program reads before gdc_wait: lane, length, slot and table, which the first kernels of a step
wrote, constants, and old cells, which the kernels of earlier steps wrote. All of those have ended:
between them and this launch stands a kernel that starts only after them (an embedding lookup without
dependent launch in this step; and each layer's launch of this kernel, which waits before it lets the
next one start). A kernel that wrote any of it directly before this launch would have to be waited for.

Knows nothing about requests or graphs.

Shapes: G heads of one KV head, padded to 16, D head dim (padded).
Source: FlashDecoding (Dao et al., 2023) on paged tables (Kwon et al., 2023); RoFormer (Su et al., 2021).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids
from kernels.decode_cells import attend_cells, attend_tiles, load_tiles, prefetch_cells
from kernels.decode_join import leave_result
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _load_pairs(at, d, mask, HEAD_DIM: tl.constexpr):
    """Return numbers in float32, and those that RoPE rotates them with: half a head away."""
    partner = tl.where(d < HEAD_DIM // 2, d + HEAD_DIM // 2, d - HEAD_DIM // 2)
    x = tl.load(at + d, mask=mask, other=0.0).to(tl.float32)
    return x, tl.load(at + partner, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _load_norm(weight_ptr, d, HEAD_DIM: tl.constexpr):
    weight, partner_weight = 1.0, 1.0
    if weight_ptr is not None:
        weight, partner_weight = _load_pairs(weight_ptr, d, d < HEAD_DIM, HEAD_DIM)
    return weight, partner_weight


@triton.jit
def _load_angles(cos_sin_ptr, d, HEAD_DIM: tl.constexpr):
    """Return each dim's cosine, and its sine with the sign that it has there."""
    half_d = d % (HEAD_DIM // 2)
    cos = tl.load(cos_sin_ptr + half_d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    sin = tl.load(cos_sin_ptr + HEAD_DIM // 2 + half_d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    return cos, tl.where(d < HEAD_DIM // 2, -sin, sin)


@triton.jit
def _rotate(x, partner, norm, angles, eps, HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr):
    """Return heads normalized and rotated, in float32, as qk_norm_rope_store does it."""
    if HAS_NORM:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        x, partner = x * scale * norm[0], partner * scale * norm[1]
    return x * angles[0] + partner * angles[1]


@triton.jit
def qkv_decode_kernel(
    qkv_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_ptr, value_ptr, table_ptr, lanes_ptr,
    seq_lens_ptr, slots_ptr, out_ptr, partial_ptr, lse_ptr, counters_ptr,
    scale_log2, eps, qkv_stride, cos_sin_stride, table_stride,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_SPLITS: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr, NUM_STAGES: tl.constexpr, NUM_EARLY_TILES: tl.constexpr,
    NUM_PREFETCHED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend to one split of one row's old cells, the last one to the new cell as well."""
    pair, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, kv_head = pair // NUM_KV_HEADS, pair % NUM_KV_HEADS
    lane = tl.load(lanes_ptr + row).to(tl.int64)
    seq_len = tl.where(lane < 0, 0, tl.load(seq_lens_ptr + row))
    slot = tl.load(slots_ptr + row)
    num_old = tl.maximum(seq_len - 1, 0)
    split_len = tl.maximum(tl.cdiv(tl.cdiv(num_old, NUM_SPLITS), TILE), 1) * TILE
    num_active = tl.maximum(tl.cdiv(num_old, split_len), 1)
    if split >= num_active:
        return
    g, d = tl.arange(0, max(GROUP_PADDED, 16))[:, None], tl.arange(0, DIM_PADDED)[None, :]
    mask_GD = (g < GROUP) & (d < HEAD_DIM)
    out_ptr += pair * (GROUP * HEAD_DIM)
    if seq_len == 0:
        if PDL:
            gdc_wait()
        tl.store(out_ptr + g * HEAD_DIM + d, tl.zeros(mask_GD.shape, out_ptr.dtype.element_ty), mask=mask_GD)
        return
    start, is_last = split * split_len, split == num_active - 1
    end = tl.minimum(start + split_len, num_old)
    late_start = start + NUM_EARLY_TILES * TILE
    table_ptr += lane * table_stride
    keys, values = load_tiles(
        key_ptr, value_ptr, table_ptr, start, end, kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, DIM_PADDED,
        TILE, NUM_EARLY_TILES,
    )  # fmt: skip
    block = load_block_ids(table_ptr, late_start, end, BLOCK_SIZE, TILE)
    if PDL and NUM_PREFETCHED > 0:
        prefetch_cells(
            key_ptr, value_ptr, table_ptr, late_start, end, kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM,
            NUM_PREFETCHED,
        )  # fmt: skip
    angles = _load_angles(cos_sin_ptr + num_old.to(tl.int64) * cos_sin_stride, d, HEAD_DIM)
    q_norm, k_norm = _load_norm(q_weight_ptr, d, HEAD_DIM), _load_norm(k_weight_ptr, d, HEAD_DIM)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    qkv_ptr += row * qkv_stride
    new_key_ptr = qkv_ptr + (NUM_KV_HEADS * GROUP + kv_head) * HEAD_DIM
    q, q_partner = _load_pairs(qkv_ptr + (kv_head * GROUP + g) * HEAD_DIM, d, mask_GD, HEAD_DIM)
    k, k_partner = _load_pairs(new_key_ptr, d, d < HEAD_DIM, HEAD_DIM)
    new_value = tl.load(new_key_ptr + NUM_KV_HEADS * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    HAS_NORM: tl.constexpr = q_weight_ptr is not None
    dtype: tl.constexpr = key_ptr.dtype.element_ty
    q_GD = _rotate(q, q_partner, q_norm, angles, eps, HEAD_DIM, HAS_NORM).to(dtype)
    new_key = _rotate(k, k_partner, k_norm, angles, eps, HEAD_DIM, HAS_NORM).to(dtype)
    # slot is int64: its product passes 2**31 in a large cache.
    cell = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM + d
    is_stored = (d < HEAD_DIM) & is_last & (slot >= 0)
    tl.store(key_ptr + cell, new_key, mask=is_stored)
    tl.store(value_ptr + cell, new_value, mask=is_stored)
    # The state begins with the new cell, or empty.
    score_G = tl.sum(q_GD.to(tl.float32) * new_key.to(tl.float32), 1) * scale_log2
    best_G = tl.where(is_last, score_G, float("-inf"))
    sum_G = tl.where(is_last, 1.0, 0.0) + tl.zeros_like(score_G)
    acc_GD = tl.where(is_last, new_value.to(tl.float32), 0.0) + tl.zeros(q_GD.shape, tl.float32)
    acc_GD, sum_G, best_G = attend_tiles(
        q_GD, acc_GD, sum_G, best_G, keys, values, start, end, scale_log2, TILE, NUM_EARLY_TILES
    )
    acc_GD, sum_G, best_G = attend_cells(
        q_GD, acc_GD, sum_G, best_G, key_ptr, value_ptr, table_ptr, block, late_start, end, scale_log2,
        kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip
    first_result = pair * NUM_SPLITS * GROUP
    leave_result(
        acc_GD, sum_G, best_G, out_ptr, partial_ptr + first_result * HEAD_DIM, lse_ptr + first_result,
        counters_ptr + pair, split, num_active, GROUP, GROUP_PADDED, HEAD_DIM, NUM_SPLITS, CHUNK,
    )  # fmt: skip
