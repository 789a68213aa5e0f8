"""What stands between the QKV projection and attention, in one launch: norms, RoPE, KV store.

Query and key heads are normalized (where the model has such norms) and rotated; queries go to a
tensor of their own, keys and values to their cache slots. All in float32 between load and store. Rows may
have been projected without their norm, whose factor they then get here. Knows nothing about requests or
blocks: a slot is a cell's number, counted over the whole cache.

Shapes: T packed tokens, X = (H + 2 * K) * D a row, H query heads, K KV heads, D head dim,
P positions, N blocks, S block size, E hidden.
Source: RoFormer (Su et al., 2021), in the half-split layout of Hugging Face's checkpoints.
"""

import torch
import triton

from kernels.dependent_launch import can_depend, launch_options
from kernels.qk_norm_rope_kernel import qk_norm_rope_store_kernel
from kernels.qk_norm_rope_ref import check_qk_norm_rope_store, qk_norm_rope_store_ref
from kernels.row_squares import check_scaling, scaling_constants

__all__ = ["qk_norm_rope_store", "qk_norm_rope_store_kernel", "qk_norm_rope_store_ref"]


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
    residual_TE: torch.Tensor | None = None,
    in_place: bool = False,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Return the query heads, ready for attention, and write keys and values into their slots.

    A row of qkv_TX holds a token's query, key and value heads; rows may be strided. positions_T is int32
    or int64, below P; cos_sin_PD, of any float dtype, has a position's D / 2 cosines, then its sines.
    Without q_weight_D and k_weight_D heads are not normalized. Caches are contiguous, of qkv's dtype;
    slot_mapping_T is int64, distinct where not negative, and a negative slot skips K and V. out_q_THD is
    written and returned. residual_TE, whose rows may be strided, is what was projected without its norm; each
    row of qkv_TX is multiplied by that norm's factor first. in_place writes keys, and values where something
    is multiplied, back to qkv_TX, too. is_dependent lets it start while the kernel before runs, where the
    device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    inputs = (qkv_TX, positions_T, cos_sin_PD, q_weight_D, k_weight_D)
    outputs = (key_cache_NSKD, value_cache_NSKD, slot_mapping_T, out_q_THD)
    check_qk_norm_rope_store(*inputs, *outputs, num_heads, num_kv_heads)
    num_tokens, D = len(qkv_TX), out_q_THD.shape[-1]
    if residual_TE is not None:
        check_scaling(residual_TE, num_tokens)
    if num_tokens == 0:
        return out_q_THD
    strides = [0 if rows is None else rows.stride(0) for rows in (qkv_TX, cos_sin_PD, out_q_THD, residual_TE)]
    qk_norm_rope_store_kernel[(num_tokens,)](
        *(*inputs, *outputs, residual_TE, *strides, eps),
        **_constants(num_heads, num_kv_heads, head_dim=D),
        **scaling_constants(residual_TE),
        HAS_NORM=q_weight_D is not None,
        IN_PLACE=in_place,
        **launch_options(is_dependent and can_depend(qkv_TX.device)),
    )
    return out_q_THD


def _constants(num_heads: int, num_kv_heads: int, *, head_dim: int) -> dict[str, int]:
    block_h, block_kv, block_half = map(triton.next_power_of_2, (num_heads, 2 * num_kv_heads, head_dim // 2))
    return {
        "H": num_heads,
        "K": num_kv_heads,
        "D": head_dim,
        "BLOCK_H": block_h,
        "BLOCK_KV": block_kv,
        "BLOCK_HALF": block_half,
        "num_warps": choose_warps(block_h, block_kv, block_half),
    }


def choose_warps(block_h: int, block_kv: int, block_half: int) -> int:
    """Return a program's warps: 16 bytes of 16-bit numbers a thread and half, where heads are enough."""
    num_warps = max(1, min(max(block_h, block_kv) * block_half // 256, 4))
    # With fewer threads than a head has numbers, angles would be passed on between them.
    return max(num_warps, block_half // 16)
