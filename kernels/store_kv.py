"""Writes the K and V rows of new tokens into their cells of a paged cache.

Knows nothing about requests or blocks: a slot is a cell's number, counted over the whole cache.

Shapes: T packed tokens, N blocks, S block size, K KV heads, D head dim.
"""

import torch


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


def write_slots(x_TKD: torch.Tensor, cache_NSKD: torch.Tensor, slots_T: torch.Tensor) -> None:
    """Write rows into slots that are all at least 0. Addresses are int64, as all of PyTorch's are."""
    cache_CX = cache_NSKD.view(-1, x_TKD.shape[1] * x_TKD.shape[2])  # C cells of X = K * D numbers
    cache_CX.index_copy_(0, slots_T, x_TKD.flatten(1))


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
