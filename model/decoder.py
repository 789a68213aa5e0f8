"""The decoder that Qwen3 and Llama share: embeddings, layers, final norm, output head.

Knows nothing about requests, sampling, where weights come from or how ranks reach each other.

Shapes: T packed tokens, R rows, E hidden, I intermediate, V token ids of this rank.
"""

from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import silu

from kernels.shared_sample import SharedVocabulary
from model.attention import Attention
from model.config import ModelConfig
from model.embedding import Embedding, OutputHead
from model.forward_context import ForwardContext
from model.linear import Linear, RowParallelLinear
from model.norm import RmsNorm
from model.ranks import OneRank, Ranks
from model.rope import inverse_frequencies, rope_angles
from model.share import share_model
from model.step import StepInputs

MAX_BYTES_HELD_TWICE = 4 << 30
"""Weights up to this size may be kept in two orders on a CPU: one request alone gains a tenth."""


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, *, ranks: Ranks, dtype: torch.dtype) -> None:
        super().__init__()
        self.intermediate_size = config.intermediate_size
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, dtype=dtype)
        self.down_proj = RowParallelLinear(
            config.intermediate_size, config.hidden_size, ranks=ranks, dtype=dtype
        )

    def forward(self, hidden_TE: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, as large as hidden_TE."""
        gate_TI, up_TI = self.gate_up_proj(hidden_TE).split(self.intermediate_size, -1)
        output: torch.Tensor = self.down_proj(silu(gate_TI).mul_(up_TI))
        return output


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(
        self, config: ModelConfig, attention: Attention, *, ranks: Ranks, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.attention = attention
        self.mlp_norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.mlp = GatedMlp(config, ranks=ranks, dtype=dtype)

    def forward(self, hidden_TE: torch.Tensor, step: StepInputs) -> None:
        """Add the layer's output to hidden_TE, in place."""
        hidden_TE += self.attention(self.attention_norm(hidden_TE), step)
        hidden_TE += self.mlp(self.mlp_norm(hidden_TE))


class CausalLM(nn.Module):
    """A decoder-only language model. Run it under torch.inference_mode()."""

    attention_class: ClassVar[type[Attention]] = Attention
    inv_freq_F: torch.Tensor

    def __init__(self, config: ModelConfig, *, ranks: Ranks | None = None, dtype: torch.dtype) -> None:
        """Make a rank's share, its weights still to be filled.

        Args:
            config: Of the whole model.
            ranks: Which share it. None: it is not shared.
            dtype: Of the weights.

        Raises:
            ShareError: The model cannot be cut for so many ranks.
        """
        super().__init__()
        self.ranks = ranks = ranks or OneRank()
        self.share = share_model(config, rank=ranks.rank, size=ranks.size)
        self.config = config = self.share.config
        """Shapes of the share."""
        self.embedding = Embedding(self.share, ranks=ranks, dtype=dtype)
        self.layers = nn.ModuleList(
            DecoderLayer(
                config,
                self.attention_class(config, index, ranks=ranks, dtype=dtype),
                ranks=ranks,
                dtype=dtype,
            )
            for index in range(config.num_layers)
        )
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.head = OutputHead(self.share, dtype=dtype)
        if config.is_tied:
            self.head.tie(self.embedding)
        inv_freq_F = inverse_frequencies(config.rope, config.head_dim)
        self.register_buffer("inv_freq_F", inv_freq_F, persistent=False)

    def forward(
        self, input_ids_T: torch.Tensor, positions_T: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """Run all layers over a step's packed tokens and write their K and V into the cache.

        Args:
            input_ids_T: int32 or int64.
            positions_T: each token's absolute index in its request.
            context: what attention must know of the step.

        Returns:
            hidden_TE, after the final norm: compute_logits turns the rows that matter into logits.
        """
        hidden_TE = self.embedding(input_ids_T)
        step = StepInputs(
            context=context,
            plan=context.backend.plan(context),
            angles=rope_angles(positions_T, self.inv_freq_F, dtype=hidden_TE.dtype),
        )
        for layer in self.layers:
            layer(hidden_TE, step)
        output: torch.Tensor = self.norm(hidden_TE)
        return output

    def compute_logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """Return logits_RV in float32, for the token ids of this rank; padding has -inf."""
        logits_RV: torch.Tensor = self.head(hidden_RE)
        return logits_RV

    @property
    def shared_vocabulary(self) -> SharedVocabulary | None:
        """How to sample from logits of this rank; None where they are all there are."""
        if self.ranks.size == 1:
            return None
        return SharedVocabulary(
            first_id=self.share.vocabulary.start,
            num_ids=self.share.whole.vocab_size,
            all_gather=self.ranks.all_gather,
        )

    def pack_weights(self) -> None:
        """Put the loaded weights into the orders that run fastest on this device."""
        num_bytes = sum(parameter.nbytes for parameter in self.parameters())
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(may_hold_twice=num_bytes <= MAX_BYTES_HELD_TWICE)
