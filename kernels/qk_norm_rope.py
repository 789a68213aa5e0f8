"""What stands between the QKV projection and attention, in one launch: norms, RoPE, KV store.

Query and key heads are normalized (where the model has such norms) and rotated; queries go to a
tensor of their own, keys and values to their cache slots. All in float32 between load and store.
Knows nothing about requests or blocks: a slot is a cell's number, counted over the whole cache.

Shapes: T packed tokens, X = (H + 2 * K) * D a row, H query heads, K KV heads, D head dim,
P positions, N blocks, S block size.
Source: RoFormer (Su et al., 2021), in the half-split layout of Hugging Face's checkpoints.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options
from kernels.qk_norm_rope_ref import check_qk_norm_rope_store, qk_norm_rope_store_ref

__all__ = ["qk_norm_rope_store", "qk_norm_rope_store_kernel", "qk_norm_rope_store_ref"]


@triton.jit
def qk_norm_rope_store_kernel(
    qkv_ptr, positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_cache_ptr, value_cache_ptr,
    slot_mapping_ptr, out_q_ptr, qkv_stride, cos_sin_stride, out_stride, eps,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
    HAS_NORM: tl.constexpr, KEYS_IN_PLACE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: HEADS heads of one token, the lower and upper half of each as a tile."""
    HALF: tl.constexpr = D // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, BLOCK_HALF)[None, :]
    is_in = (head < H + 2 * K) & (column < HALF)
    is_q, is_v = head < H, head >= H + K
    head_at = qkv_ptr + token * qkv_stride + head * D + column
    if HAS_NORM:
        weight_low, weight_high = _load_weights(q_weight_ptr, k_weight_ptr, is_q, column, HALF)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    low, high = _load_halves(head_at, is_in, HALF)
    position = tl.maximum(tl.load(positions_ptr + token), 0).to(tl.int64)  # padding's may be negative
    slot = tl.load(slot_mapping_ptr + token)
    cos, sin = _load_halves(cos_sin_ptr + position * cos_sin_stride + column, column < HALF, HALF)
    x_low, x_high = low, high  # values stay as they are loaded
    if HAS_NORM:
        scale = 1.0 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / D + eps)[:, None]
        x_low, x_high = low * scale * weight_low, high * scale * weight_high
    low, high = (
        tl.where(is_v, low, x_low * cos - x_high * sin),
        tl.where(is_v, high, x_high * cos + x_low * sin),
    )
    _store_halves(out_q_ptr + token * out_stride + head * D + column, low, high, is_in & is_q, HALF)
    if KEYS_IN_PLACE:
        _store_halves(head_at, low, high, is_in & (head >= H) & (head < H + K), HALF)
    cell = slot * (K * D) + (head - H) * D + column  # int64 as slot is: it passes 2**31 in a large cache
    is_kv = is_in & (slot >= 0) & (head >= H)
    _store_halves(key_cache_ptr + cell, low, high, is_kv & (head < H + K), HALF)
    _store_halves(value_cache_ptr + cell - K * D, low, high, is_kv & is_v, HALF)


@triton.jit
def _load_halves(at, mask, HALF: tl.constexpr):
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return low, tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _load_weights(q_weight_ptr, k_weight_ptr, is_q, column, HALF: tl.constexpr):
    q_low, q_high = _load_halves(q_weight_ptr + column, column < HALF, HALF)
    k_low, k_high = _load_halves(k_weight_ptr + column, column < HALF, HALF)
    return tl.where(is_q, q_low, k_low), tl.where(is_q, q_high, k_high)


@triton.jit
def _store_halves(at, low, high, mask, HALF: tl.constexpr):
    tl.store(at, low.to(at.dtype.element_ty), mask=mask)
    tl.store(at + HALF, high.to(at.dtype.element_ty), mask=mask)


def qk_norm_rope_store(
    qkv_TX: torch.Tensor,
    positions_T: torch.Tensor,
    cos_sin_PD: torch.Tensor,
    q_weight_D: torch.Tensor | None,
    k_weight_D: torch.Tensor | None,
    eps: float,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    out_q_THD: torch.Tensor,
    *,
    keys_in_place: bool = False,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Return the query heads, ready for attention, and write keys and values into their slots.

    A row of qkv_TX holds a token's query, key and value heads; rows may be strided. positions_T is int32
    or int64, below P; cos_sin_PD, of any float dtype, has a position's D / 2 cosines, then its sines.
    Without q_weight_D and k_weight_D heads are not normalized. Caches are contiguous, of qkv's dtype;
    slot_mapping_T is int64, distinct where not negative, and a negative slot skips K and V. out_q_THD is
    written and returned. keys_in_place writes keys back to qkv_TX, too. is_dependent lets it start while
    the kernel before runs, where the device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    inputs = (qkv_TX, positions_T, cos_sin_PD, q_weight_D, k_weight_D)
    outputs = (key_cache_NSKD, value_cache_NSKD, slot_mapping_T, out_q_THD)
    check_qk_norm_rope_store(*inputs, *outputs, num_heads, num_kv_heads)
    num_tokens, num_all_heads, D = len(qkv_TX), num_heads + 2 * num_kv_heads, out_q_THD.shape[-1]
    if num_tokens == 0:
        return out_q_THD
    block_half = triton.next_power_of_2(D // 2)
    heads, num_warps = choose_heads(num_tokens, num_all_heads, block_half)
    qk_norm_rope_store_kernel[(num_tokens, triton.cdiv(num_all_heads, heads))](
        *(*inputs, *outputs, qkv_TX.stride(0), cos_sin_PD.stride(0), out_q_THD.stride(0), eps),
        H=num_heads,
        K=num_kv_heads,
        D=D,
        HEADS=heads,
        BLOCK_HALF=block_half,
        HAS_NORM=q_weight_D is not None,
        KEYS_IN_PLACE=keys_in_place,
        num_warps=num_warps,
        **launch_options(is_dependent and can_depend(qkv_TX.device)),
    )
    return out_q_THD


def choose_heads(num_tokens: int, num_all_heads: int, block_half: int) -> tuple[int, int]:
    """Return (heads a program, warps): few tokens spread over many programs."""
    most = 8 if num_tokens <= 512 else 32
    heads = min(triton.next_power_of_2(num_all_heads), max(1, most * 64 // block_half))
    return heads, min(max(heads * block_half // 256, 1), 8)
