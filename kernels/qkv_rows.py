"""A layer's projected tokens as backends are given them, before norms, RoPE and the KV store.

Knows nothing about steps or layers.

Shapes: T packed tokens, X = (H + 2 * K) * D a row, H query heads, K KV heads, D head dim, P positions,
N blocks, S block size, E hidden.
"""

from dataclasses import dataclass

import torch

from kernels.qk_norm_rope import qk_norm_rope_store


@dataclass(frozen=True, slots=True, kw_only=True)
class QkvRows:
    """Projected tokens, and how their heads are normalized and rotated."""

    qkv_TX: torch.Tensor
    """A token's query, key and value heads."""
    positions_T: torch.Tensor
    """int32: each token's absolute index in its request."""
    slot_mapping_T: torch.Tensor
    """int64: each token's cell in the KV cache; a negative slot is skipped."""
    cos_sin_PD: torch.Tensor
    """A position's D / 2 cosines, then its sines."""
    q_norm_D: torch.Tensor | None
    """None, like k_norm_D, where heads are not normalized."""
    k_norm_D: torch.Tensor | None
    eps: float
    q_THD: torch.Tensor
    """Room for the query heads."""
    residual_TE: torch.Tensor | None = None
    """What was projected without its norm, which is left to who reads the rows: a factor of each."""
    is_stored: bool = False
    """Whether the query heads are there already, keys and values in their cells, and, where there are rows of
    more than one token, in place."""


def rotate_and_store(
    rows: QkvRows,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    *,
    in_place: bool = False,
) -> torch.Tensor:
    """Write keys and values into their slots and return the query heads, ready for attention.

    in_place writes keys, and values where they are not what the rows say, back to the rows, too. Nothing
    happens where all that is done.
    """
    if rows.is_stored:
        return rows.q_THD
    return qk_norm_rope_store(
        rows.qkv_TX,
        rows.positions_T,
        rows.cos_sin_PD,
        rows.q_norm_D,
        rows.k_norm_D,
        rows.eps,
        key_cache_NSKD,
        value_cache_NSKD,
        rows.slot_mapping_T,
        rows.q_THD.shape[1],
        key_cache_NSKD.shape[2],
        rows.q_THD,
        residual_TE=rows.residual_TE,
        in_place=in_place,
        is_dependent=True,
    )
