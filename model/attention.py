"""Grouped-query self-attention over a paged KV cache: projections here, the attention in a backend.

Knows nothing about requests or how the backend does it.

Shapes: T packed tokens, E hidden, H query heads, K KV heads, J query and key heads together, D head
dim.
"""

import torch
from torch import nn

from model.config import ModelConfig
from model.linear import Linear, RowParallelLinear
from model.ranks import Ranks
from model.rope import apply_rope
from model.step import StepInputs


class Attention(nn.Module):
    """One layer's attention, without q/k norm.

    Args:
        config: Shapes of this rank's share.
        layer_index: Which cache is the layer's.
        ranks: Which hold the other heads.
        dtype: Of the weights.
    """

    def __init__(self, config: ModelConfig, layer_index: int, *, ranks: Ranks, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        has_bias = config.has_attention_bias
        self.qkv_proj = Linear(config.hidden_size, query_size + 2 * kv_size, has_bias=has_bias, dtype=dtype)
        self.o_proj = RowParallelLinear(
            query_size, config.hidden_size, ranks=ranks, has_bias=has_bias, dtype=dtype
        )

    def normalize(self, qk_TJD: torch.Tensor) -> torch.Tensor:
        """Return query and key heads as they enter RoPE; models with q/k norm override this."""
        return qk_TJD

    def forward(self, hidden_TE: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """Return the attention's output, as large as hidden_TE."""
        num_tokens, backend = len(hidden_TE), step.context.backend
        cache = step.context.kv_caches[self.layer_index]
        qkv_TXD = self.qkv_proj(hidden_TE).view(num_tokens, -1, self.head_dim)
        qk_TJD, value_TKD = qkv_TXD.split_with_sizes(
            (self.num_heads + self.num_kv_heads, self.num_kv_heads), 1
        )
        qk_TJD = apply_rope(self.normalize(qk_TJD), step.angles)
        backend.store(qk_TJD[:, self.num_heads :], value_TKD, *cache, step.plan)
        out_THD = backend.attend(qk_TJD[:, : self.num_heads], *cache, step.plan)
        output: torch.Tensor = self.o_proj(out_THD.view(num_tokens, -1))
        return output
