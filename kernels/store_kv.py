"""Writes the K and V rows of new tokens into their cells of a paged cache.

Knows nothing about requests or blocks: a slot is a cell's number, counted over the whole cache.

Shapes: T packed tokens, N blocks, S block size, K KV heads, D head dim.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options
from kernels.kv_slots import write_slots


@triton.jit
def store_kv_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    K: tl.constexpr,
    D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: K and V of one token."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    head = tl.arange(0, BLOCK_K)[:, None]
    column = tl.arange(0, BLOCK_D)[None, :]
    is_kept = (head < K) & (column < D) & (slot >= 0)
    key = tl.load(key_ptr + token * key_token_stride + head * key_head_stride + column, mask=is_kept)
    value = tl.load(value_ptr + token * value_token_stride + head * value_head_stride + column, mask=is_kept)
    # slot is int64: slot * K * D passes 2**31 in a large cache.
    cell = slot * (K * D) + head * D + column
    tl.store(key_cache_ptr + cell, key, mask=is_kept)
    tl.store(value_cache_ptr + cell, value, mask=is_kept)


def store_kv(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
    *,
    is_dependent: bool = False,
) -> None:
    """Write each token's K and V into its slot.

    Args:
        key_TKD: in the cache's dtype; tokens and heads may be strided.
        value_TKD: like key_TKD.
        key_cache_NSKD: contiguous; written in place.
        value_cache_NSKD: like key_cache_NSKD.
        slot_mapping_T: int64, distinct where not negative; a negative slot skips its token.
        is_dependent: let it start while the kernel before it runs, where the device can.

    Raises:
        ValueError: the shapes, strides or dtypes do not fit each other.
    Source: fused block write of PagedAttention (Kwon et al., 2023).
    """
    check_store_kv(key_TKD, value_TKD, key_cache_NSKD, value_cache_NSKD, slot_mapping_T)
    num_tokens, K, D = key_TKD.shape
    if num_tokens == 0:
        return
    block_k, block_d = triton.next_power_of_2(K), triton.next_power_of_2(D)
    store_kv_kernel[(num_tokens,)](
        *(key_TKD, value_TKD, key_cache_NSKD, value_cache_NSKD, slot_mapping_T),
        *(*key_TKD.stride()[:2], *value_TKD.stride()[:2]),
        K=K,
        D=D,
        BLOCK_K=block_k,
        BLOCK_D=block_d,
        num_warps=min(max(block_k * block_d // 256, 1), 8),
        **launch_options(is_dependent and can_depend(key_TKD.device)),
    )


def store_kv_ref(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Write each token's K and V into its slot, in plain PyTorch.

    Args:
        key_TKD: in the cache's dtype.
        value_TKD: like key_TKD.
        key_cache_NSKD: contiguous; written in place.
        value_cache_NSKD: like key_cache_NSKD.
        slot_mapping_T: int64, distinct where not negative; a negative slot skips its token.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
        IndexError: a slot lies past the cache.
    Source: fused block write of PagedAttention (Kwon et al., 2023).
    """
    check_store_kv(key_TKD, value_TKD, key_cache_NSKD, value_cache_NSKD, slot_mapping_T)
    kept_T = slot_mapping_T >= 0
    write_slots(key_TKD[kept_T], key_cache_NSKD, slot_mapping_T[kept_T])
    write_slots(value_TKD[kept_T], value_cache_NSKD, slot_mapping_T[kept_T])


def check_store_kv(
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    if key_TKD.shape != value_TKD.shape or key_cache_NSKD.shape != value_cache_NSKD.shape:
        raise ValueError(
            f"K and V must have equal shapes, but have {tuple(key_TKD.shape)} and {tuple(value_TKD.shape)}, "
            f"caches {tuple(key_cache_NSKD.shape)} and {tuple(value_cache_NSKD.shape)}"
        )
    if key_TKD.shape[1:] != key_cache_NSKD.shape[2:]:
        raise ValueError(
            f"tokens of (heads, dim) {tuple(key_TKD.shape[1:])} do not fit a cache of "
            f"{tuple(key_cache_NSKD.shape[2:])}"
        )
    if slot_mapping_T.shape != key_TKD.shape[:1] or slot_mapping_T.dtype != torch.int64:
        raise ValueError(
            f"slot_mapping must be int64 of shape ({key_TKD.shape[0]},), "
            f"but is {slot_mapping_T.dtype} of {tuple(slot_mapping_T.shape)}"
        )
    if not (key_TKD.dtype == value_TKD.dtype == key_cache_NSKD.dtype == value_cache_NSKD.dtype):
        raise ValueError(f"tokens of {key_TKD.dtype} do not fit a cache of {key_cache_NSKD.dtype}")
    is_dense = key_TKD.stride(-1) == value_TKD.stride(-1) == slot_mapping_T.stride(-1) == 1
    if not (is_dense and key_cache_NSKD.is_contiguous() and value_cache_NSKD.is_contiguous()):
        raise ValueError("caches must be contiguous, and tokens and slot_mapping in their last dimension")
