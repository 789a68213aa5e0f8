"""The plain PyTorch references of large_projection: the same arguments, the same results in the same places.

Knows nothing about Triton.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F or (H + 2 * K) * D, J sums of
squares of a row, H query heads, K KV heads, D head dim.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import linear, silu

from kernels.qk_norm_rope_ref import qk_norm_rope_store_ref
from kernels.row_squares import row_scale_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How heads are made ready for attention, and where they go: as qk_norm_rope_store's arguments."""

    positions_R: torch.Tensor
    cos_sin_PD: torch.Tensor
    q_weight_D: torch.Tensor | None
    k_weight_D: torch.Tensor | None
    eps: float
    key_cache_NSKD: torch.Tensor
    value_cache_NSKD: torch.Tensor
    slot_mapping_R: torch.Tensor
    out_q_RHD: torch.Tensor
    out_RX: torch.Tensor
    """Its columns of keys and values are written, those of queries are not."""
    is_in_place: bool = True
    """Whether out_RX is; keys and values go to the caches in any case."""


def norm_gate_up_silu_ref(
    x_RI: torch.Tensor,
    weight_XI: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    is_dependent: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Do what norm_gate_up_silu does, in float32."""
    gate_RF, up_RF = _project(x_RI, weight_XI, eps).chunk(2, -1)
    return out.copy_(silu(gate_RF) * up_RF)


def norm_qkv_rotate_ref(
    x_RI: torch.Tensor,
    weight_XI: torch.Tensor,
    eps: float,
    heads: Heads,
    *,
    is_dependent: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Do what norm_qkv_rotate does, in float32."""
    num_heads, num_kv_heads, D = *heads.out_q_RHD.shape[1:2], *heads.key_cache_NSKD.shape[2:]
    projected_RX = _project(x_RI, weight_XI, eps)
    own_slots_R = torch.arange(len(x_RI), device=x_RI.device)
    # Stored to a cell of each row's own, and from there to its places.
    caches = projected_RX.new_empty(2, len(x_RI), 1, num_kv_heads, D)
    out_q_RHD = qk_norm_rope_store_ref(
        projected_RX,
        heads.positions_R,
        heads.cos_sin_PD,
        heads.q_weight_D,
        heads.k_weight_D,
        heads.eps,
        caches[0],
        caches[1],
        own_slots_R,
        num_heads,
        num_kv_heads,
    )
    heads.out_q_RHD.copy_(out_q_RHD)
    is_kept_R = heads.slot_mapping_R >= 0
    slots = heads.slot_mapping_R[is_kept_R]
    columns = heads.out_RX[:, num_heads * D :].chunk(2, -1)
    for numbers_R1KD, cache, column_RX in zip(
        caches, (heads.key_cache_NSKD, heads.value_cache_NSKD), columns, strict=True
    ):
        if heads.is_in_place:
            column_RX.copy_(numbers_R1KD.flatten(1))
        cache.flatten(0, 1)[slots] = numbers_R1KD[is_kept_R, 0].to(cache.dtype)
    return heads.out_q_RHD


def _project(x_RI: torch.Tensor, weight_OI: torch.Tensor, eps: float) -> torch.Tensor:
    product_RO: torch.Tensor = linear(x_RI.float(), weight_OI.float())
    return product_RO * row_scale_ref(x_RI, eps)
