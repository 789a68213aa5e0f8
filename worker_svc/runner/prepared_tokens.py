"""What the device makes of tokens that come as lanes and positions: their ids, and their cells.

Knows nothing about steps.
Legend: T packed tokens.
"""

from dataclasses import dataclass

import torch

from kernels.prepare import prepare_tokens
from worker_svc.runner.step_parts import StepParts


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTokens:
    """Memory for it, or what lies there; see prepare_tokens."""

    input_ids_T: torch.Tensor
    slot_mapping_T: torch.Tensor

    @classmethod
    def of(cls, num_tokens: int, device: torch.device) -> "PreparedTokens":
        """Allocate for so many tokens."""
        return cls(
            input_ids_T=torch.zeros(num_tokens, dtype=torch.int32, device=device),
            slot_mapping_T=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        )

    def first(self, num_tokens: int) -> "PreparedTokens":
        """Return views of the first tokens."""
        return PreparedTokens(
            input_ids_T=self.input_ids_T[:num_tokens], slot_mapping_T=self.slot_mapping_T[:num_tokens]
        )

    def prepare(self, lanes_T: torch.Tensor, positions_T: torch.Tensor, *, parts: StepParts) -> None:
        """Queue the kernel that writes it."""
        prepare_tokens(
            lanes_T,
            positions_T,
            parts.tables.token_pool_LP,
            parts.tables.block_table_LM,
            parts.limits.block_size,
            self.input_ids_T,
            self.slot_mapping_T,
        )
