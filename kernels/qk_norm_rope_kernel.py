"""The Triton kernel of qk_norm_rope_store: a program takes one token from its projection to attention.

Query heads are one tile, keys and values another, so that all of a token is asked for before anything is
computed, and what its heads share is loaded once for both. Knows nothing about requests or blocks.

Shapes: H query heads, K KV heads, D head dim.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.row_squares import row_scale


@triton.jit
def qk_norm_rope_store_kernel(
    qkv_ptr, positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_cache_ptr, value_cache_ptr,
    slot_mapping_ptr, out_q_ptr, residual_ptr, qkv_stride, cos_sin_stride, out_stride, residual_stride, eps,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_KV: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_E: tl.constexpr, HAS_NORM: tl.constexpr,
    IN_PLACE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: one token, the lower and upper half of each head as a row of two tiles."""
    HALF: tl.constexpr = D // 2
    token, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_HALF)[None, :]
    q_head, kv_head = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_KV)[:, None]
    is_half, is_key = column < HALF, kv_head < K
    is_q, is_kv = (q_head < H) & is_half, (kv_head < 2 * K) & is_half
    q_at = q_head * D + column
    kv_ptr = qkv_ptr + token * qkv_stride + H * D + kv_head * D + column
    if HAS_NORM:
        q_weights = _load_halves(q_weight_ptr + column, is_half, HALF)
        k_weights = _load_halves(k_weight_ptr + column, is_half, HALF)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    position = tl.maximum(tl.load(positions_ptr + token), 0).to(tl.int64)  # padding's may be negative
    q_low, q_high = _load_halves(qkv_ptr + token * qkv_stride + q_at, is_q, HALF)
    kv_low, kv_high = _load_halves(kv_ptr, is_kv, HALF)
    slot = tl.load(slot_mapping_ptr + token)
    cos, sin = _load_halves(cos_sin_ptr + position * cos_sin_stride + column, is_half, HALF)
    if residual_ptr is not None:
        scale = row_scale(residual_ptr + token * residual_stride, eps, E, BLOCK_E)
        q_low, q_high, kv_low, kv_high = q_low * scale, q_high * scale, kv_low * scale, kv_high * scale
    key_low, key_high = kv_low, kv_high
    if HAS_NORM:
        q_low, q_high = _normalize(q_low, q_high, q_weights, eps, D)
        key_low, key_high = _normalize(kv_low, kv_high, k_weights, eps, D)
    out_at = out_q_ptr + token * out_stride + q_at
    _store_halves(out_at, q_low * cos - q_high * sin, q_high * cos + q_low * sin, is_q, HALF)
    kv_low = tl.where(is_key, key_low * cos - key_high * sin, kv_low)
    kv_high = tl.where(is_key, key_high * cos + key_low * sin, kv_high)
    if IN_PLACE:  # values stay as they are loaded where nothing scales them
        has_changed = is_kv if residual_ptr is not None else is_kv & is_key
        _store_halves(kv_ptr, kv_low, kv_high, has_changed, HALF)
    cell = slot * (K * D) + (kv_head % K) * D + column  # int64 as slot is: it passes 2**31 in a large cache
    cache_ptr = tl.where(is_key, key_cache_ptr, value_cache_ptr)
    _store_halves(cache_ptr + cell, kv_low, kv_high, is_kv & (slot >= 0), HALF)


@triton.jit
def _load_halves(at, mask, HALF: tl.constexpr):
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return low, tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _normalize(low, high, weights, eps, D: tl.constexpr):
    root = tl.rsqrt(tl.sum(low * low + high * high, 1) / D + eps)[:, None]
    return low * root * weights[0], high * root * weights[1]


@triton.jit
def _store_halves(at, low, high, mask, HALF: tl.constexpr):
    tl.store(at, low.to(at.dtype.element_ty), mask=mask)
    tl.store(at + HALF, high.to(at.dtype.element_ty), mask=mask)
