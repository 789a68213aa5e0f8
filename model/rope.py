"""Rotary position embeddings: the angles of a step once, their rotation once a layer.

Knows nothing about caches: a position is the token's absolute index in its request.

Shapes: T packed tokens, H heads, D head dim, F frequencies (D / 2).
Source: RoFormer (Su et al., 2021), in the half-split layout of Hugging Face's checkpoints; llama3
scaling as in transformers.
"""

import math
from dataclasses import dataclass

import torch

from model.rope_config import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeAngles:
    """Cosines and signed sines of a step's positions, broadcast over heads."""

    cos_T1D: torch.Tensor
    sin_T1D: torch.Tensor
    """The first half negated, so that a rotation is one multiply-add."""


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return inv_freq_F in float32: the angle a position adds, for each pair of dimensions."""
    exponents_F = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inv_freq_F = 1.0 / (rope.theta**exponents_F)
    return _scale_llama3(inv_freq_F, rope) if rope.rope_type == "llama3" else inv_freq_F


def _scale_llama3(inv_freq_F: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend in between."""
    low, high, old_len = rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings
    wavelen_F = 2 * math.pi / inv_freq_F
    blend_F = ((old_len / wavelen_F - low) / (high - low)).clamp(0, 1)
    return (1 - blend_F) * inv_freq_F / rope.factor + blend_F * inv_freq_F


def rope_angles(positions_T: torch.Tensor, inv_freq_F: torch.Tensor, *, dtype: torch.dtype) -> RopeAngles:
    """Return the angles of these absolute positions, computed in float32."""
    freqs_TF = positions_T.float()[:, None] * inv_freq_F
    cos_TF, sin_TF = freqs_TF.cos(), freqs_TF.sin()
    return RopeAngles(
        cos_T1D=torch.cat((cos_TF, cos_TF), -1)[:, None].to(dtype),
        sin_T1D=torch.cat((-sin_TF, sin_TF), -1)[:, None].to(dtype),
    )


def apply_rope(x_THD: torch.Tensor, angles: RopeAngles) -> torch.Tensor:
    """Return x with each head rotated by its token's angles."""
    low_THF, high_THF = x_THD.chunk(2, -1)
    swapped_THD = torch.cat((high_THF, low_THF), -1)
    return (x_THD * angles.cos_T1D).addcmul_(swapped_THD, angles.sin_T1D)
