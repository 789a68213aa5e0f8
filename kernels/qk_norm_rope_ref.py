"""The plain PyTorch reference of qk_norm_rope, and what its arguments must fit.

Knows nothing about Triton.

Shapes: T packed tokens, X = (H + 2 * K) * D a row, J heads of a kind, H query heads, K KV heads,
D head dim, P positions, N blocks, S block size, E hidden.
"""

import torch

from kernels.kv_slots import write_slots

MAX_HEAD_DIM = 256


def qk_norm_rope_store_ref(
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
    *,
    residual_TE: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return out_q_THD and write the caches, as qk_norm_rope_store does."""
    dtype = qkv_TX.dtype
    if residual_TE is not None:
        qkv_TX = qkv_TX * (residual_TE.float().square().mean(1, keepdim=True) + eps).rsqrt()
    qkv_TJD = qkv_TX.unflatten(1, (num_heads + 2 * num_kv_heads, -1))
    q_TJD, key_TJD, value_TKD = qkv_TJD.split((num_heads, num_kv_heads, num_kv_heads), 1)
    cos_sin_T1D = cos_sin_PD[positions_T.long().clamp(min=0)].float()[:, None]
    q_TJD = _rotate(_normalize(q_TJD.float(), q_weight_D, eps), cos_sin_T1D)
    key_TJD = _rotate(_normalize(key_TJD.float(), k_weight_D, eps), cos_sin_T1D)
    kept_T = slot_mapping_T >= 0
    slots = slot_mapping_T[kept_T]
    write_slots(key_TJD.to(key_cache_NSKD.dtype)[kept_T], key_cache_NSKD, slots)
    write_slots(value_TKD.to(dtype)[kept_T], value_cache_NSKD, slots)
    return q_TJD.to(dtype)


def _normalize(x_TJD: torch.Tensor, weight_D: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight_D is None:
        return x_TJD
    return x_TJD * (x_TJD.square().mean(-1, keepdim=True) + eps).rsqrt() * weight_D.float()


def _rotate(x_TJD: torch.Tensor, cos_sin_T1D: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_sin_T1D.chunk(2, -1)
    low, high = x_TJD.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def check_qk_norm_rope_store(
    qkv_TX: torch.Tensor,
    positions_T: torch.Tensor,
    cos_sin_PD: torch.Tensor,
    q_weight_D: torch.Tensor | None,
    k_weight_D: torch.Tensor | None,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
    out_q_THD: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    num_tokens, D = len(qkv_TX), out_q_THD.shape[-1]
    if D % 2 or D > MAX_HEAD_DIM:
        raise ValueError(f"head dim must be even and at most {MAX_HEAD_DIM}, but is {D}")
    expected = (
        ("qkv", qkv_TX, (num_tokens, (num_heads + 2 * num_kv_heads) * D)),
        ("out_q", out_q_THD, (num_tokens, num_heads, D)),
        ("positions", positions_T, (num_tokens,)),
        ("slot_mapping", slot_mapping_T, (num_tokens,)),
        ("cos_sin", cos_sin_PD, (len(cos_sin_PD), D)),
        ("key_cache", key_cache_NSKD, (*key_cache_NSKD.shape[:2], num_kv_heads, D)),
        ("value_cache", value_cache_NSKD, key_cache_NSKD.shape),
        ("q_weight", q_weight_D, (D,)),
        ("k_weight", k_weight_D, (D,)),
    )
    for name, tensor, shape in expected:
        # A row's own numbers lie side by side; rows of qkv and out_q may be strided.
        if tensor is not None and (tensor.shape != shape or not _is_dense(tensor)):
            raise ValueError(
                f"{name} must be dense, of {tuple(shape)}, "
                f"but has {tuple(tensor.shape)}, strides {tensor.stride()}"
            )
    if (q_weight_D is None) != (k_weight_D is None):
        raise ValueError("q_weight and k_weight must both be given, or neither")
    _check_dtypes(qkv_TX, positions_T, key_cache_NSKD, value_cache_NSKD, slot_mapping_T, out_q_THD)


def _is_dense(tensor: torch.Tensor) -> bool:
    if tensor.ndim not in (2, 3):
        return tensor.is_contiguous()
    # Looking at a row takes a host 5 us, and one that launches large steps has none to spare.
    dense = (1,) if tensor.ndim == 2 else (tensor.shape[2], 1)
    return tensor.stride()[1:] == dense or len(tensor) == 0 or tensor[0].is_contiguous()


def _check_dtypes(
    qkv_TX: torch.Tensor,
    positions_T: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_T: torch.Tensor,
    out_q_THD: torch.Tensor,
) -> None:
    if not (qkv_TX.dtype == key_cache_NSKD.dtype == value_cache_NSKD.dtype == out_q_THD.dtype):
        raise ValueError(
            f"qkv of {qkv_TX.dtype} fits neither a cache of {key_cache_NSKD.dtype} "
            f"nor out_q of {out_q_THD.dtype}"
        )
    if slot_mapping_T.dtype != torch.int64 or positions_T.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"slot_mapping must be int64 and positions int32 or int64, "
            f"but are {slot_mapping_T.dtype} and {positions_T.dtype}"
        )
