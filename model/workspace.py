"""The memory of a fused forward pass's activations.

Knows nothing about what is computed in it.

Shapes: T rows, E hidden, X = (H + 2K) * D projected, H query heads, K KV heads, D head dim, F intermediate,
G = 2 * F, J sums of squares of a row.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.row_squares import num_sums
from kernels.tiled_config import ProjectionWorkspace, make_projection_workspace
from model.decoder import CausalLM
from model.ranks import SharedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Memory for one step's activations; its first rows serve a smaller step."""

    residual_TE: torch.Tensor
    normed_TE: torch.Tensor
    qkv_TX: torch.Tensor
    q_THD: torch.Tensor
    attended_THD: torch.Tensor
    gate_up_TG: torch.Tensor
    gated_TF: torch.Tensor
    squares_TJ: torch.Tensor
    """float32: the residual's sums of squares."""
    splits: ProjectionWorkspace
    shared: SharedRows | None = None
    """Where the residual lies that ranks share, of steps that may be cut."""

    def first(self, num_tokens: int, *, is_decode: bool = False) -> "Workspace":
        """Return views of the first rows.

        Those of decodes are not shared: they are captured, however many they are, and in a graph a kernel
        that waits for another rank's copy may come before the copy that the other one waits for.
        """
        shared = None if is_decode else self.shared
        if num_tokens == len(self.residual_TE) and shared is self.shared:
            return self
        rows: dict[str, Any] = {
            name: value[:num_tokens]
            for name in self.__dataclass_fields__
            if isinstance(value := getattr(self, name), torch.Tensor)
        }
        return replace(self, **rows, shared=shared)


def make_workspace(model: CausalLM, num_tokens: int) -> Workspace:
    """Allocate for this many tokens, on the model's device."""
    config, like = model.config, model.embedding.weight
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

    shared = model.ranks.share_rows(num_tokens, config.hidden_size, like=like)

    def rows(*shape: int) -> torch.Tensor:
        # Rows that a padded step leaves out are computed with the others: they begin as numbers.
        return like.new_zeros((num_tokens, *shape))

    return Workspace(
        residual_TE=rows(config.hidden_size) if shared is None else shared.rows_TE,
        normed_TE=rows(config.hidden_size),
        qkv_TX=rows((num_heads + 2 * num_kv_heads) * head_dim),
        q_THD=rows(num_heads, head_dim),
        attended_THD=rows(num_heads, head_dim),
        gate_up_TG=rows(2 * config.intermediate_size),
        gated_TF=rows(config.intermediate_size),
        squares_TJ=rows(num_sums(config.hidden_size)).float(),
        splits=make_projection_workspace(device=like.device),
        shared=shared,
    )


def chosen_memory(memory: Workspace) -> Workspace:
    """Return the same memory for chosen rows of what its residual holds: they go where no residual lies."""
    return replace(memory, residual_TE=memory.normed_TE, normed_TE=memory.residual_TE, shared=None)
