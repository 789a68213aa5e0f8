"""Qwen3 dense: the shared decoder with a norm on each query and key head, and nothing else.

Shapes: T packed tokens, H query heads, K KV heads, J both together, D head dim.
"""

import torch

from model.attention import Attention
from model.config import ModelConfig
from model.decoder import CausalLM
from model.norm import RmsNorm
from model.ranks import Ranks


class Qwen3Attention(Attention):
    """Attention whose queries and keys are normalized before RoPE."""

    def __init__(self, config: ModelConfig, layer_index: int, *, ranks: Ranks, dtype: torch.dtype) -> None:
        super().__init__(config, layer_index, ranks=ranks, dtype=dtype)
        self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps, dtype=dtype)
        self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps, dtype=dtype)

    def normalize(self, qk_TJD: torch.Tensor) -> torch.Tensor:
        """Return query and key heads, each head normalized."""
        q_THD, key_TKD = qk_TJD.split_with_sizes((self.num_heads, self.num_kv_heads), 1)
        return torch.cat((self.q_norm(q_THD), self.k_norm(key_TKD)), 1)


class Qwen3ForCausalLM(CausalLM):
    """The shared decoder, with q/k norm."""

    attention_class = Qwen3Attention
