"""Grouped-query self-attention over a paged KV cache: projections here, the attention in a backend.

Knows nothing about requests or how the backend does it.

Shapes: T packed tokens, E hidden, H query heads, K KV heads, D head dim.
"""

import torch
from torch import nn

from model.config import ModelConfig
from model.linear import Linear
from model.rope import apply_rope
from model.step import StepInputs


class Attention(nn.Module):
    """One layer's attention, without q/k norm."""

    def __init__(self, config: ModelConfig, layer_index: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.head_counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim
        query_size = config.num_heads * config.head_dim
        has_bias = config.has_attention_bias
        self.qkv_proj = Linear(
            config.hidden_size, sum(self.head_counts) * config.head_dim, has_bias=has_bias, dtype=dtype
        )
        self.o_proj = Linear(query_size, config.hidden_size, has_bias=has_bias, dtype=dtype)

    def normalize(self, q_THD: torch.Tensor, key_TKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q and k as they enter RoPE; models with q/k norm override this."""
        return q_THD, key_TKD

    def forward(self, hidden_TE: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """Return the attention's output, as large as hidden_TE."""
        qkv_TXD = self.qkv_proj(hidden_TE).unflatten(-1, (-1, self.head_dim))
        q_THD, key_TKD, value_TKD = qkv_TXD.split(self.head_counts, 1)
        q_THD, key_TKD = self.normalize(q_THD, key_TKD)
        q_THD, key_TKD = apply_rope(q_THD, step.angles), apply_rope(key_TKD, step.angles)
        backend = step.context.backend
        cache = step.context.kv_caches[self.layer_index]
        backend.store(key_TKD, value_TKD, *cache, step.plan)
        out_THD = backend.attend(q_THD, *cache, step.plan)
        output: torch.Tensor = self.o_proj(out_THD.flatten(1))
        return output
