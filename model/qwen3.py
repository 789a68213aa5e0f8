"""Qwen3 dense: the shared decoder with a norm on each query and key head, and nothing else.

Shapes: T packed tokens, H query heads, K KV heads, D head dim.
"""

import torch

from model.attention import Attention
from model.config import ModelConfig
from model.decoder import CausalLM
from model.norm import RmsNorm


class Qwen3Attention(Attention):
    """Attention whose queries and keys are normalized before RoPE."""

    def __init__(self, config: ModelConfig, layer_index: int, *, dtype: torch.dtype) -> None:
        super().__init__(config, layer_index, dtype=dtype)
        self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps, dtype=dtype)
        self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps, dtype=dtype)

    def normalize(self, q_THD: torch.Tensor, key_TKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q and k with each head normalized."""
        return self.q_norm(q_THD), self.k_norm(key_TKD)


class Qwen3ForCausalLM(CausalLM):
    """The shared decoder, with q/k norm."""

    attention_class = Qwen3Attention
