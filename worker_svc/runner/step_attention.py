"""Attention of one step over the lanes' block tables, bound to the kernels that compute it.

Decode rows read their blocks by lane; rows of a prefill come with a table of their own. Knows
nothing about layers or requests.
Legend: B rows, L lanes, M blocks a table, T packed tokens, H query heads, D head dim.
"""

from dataclasses import dataclass

import torch

from kernels.decode_config import DecodeWorkspace
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import paged_prefill
from model.forward_context import KvCache


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAttention:
    """Rows of one token each; padding has lane -1 and length 0."""

    block_table_LM: torch.Tensor
    lanes_B: torch.Tensor
    seq_lens_B: torch.Tensor
    scale: float
    workspace: DecodeWorkspace

    def __call__(self, q_THD: torch.Tensor, cache: KvCache, out_THD: torch.Tensor) -> None:
        """Attend; see model.fused_decoder.Attend."""
        paged_decode(
            q_THD,
            *cache,
            self.block_table_LM,
            self.lanes_B,
            self.seq_lens_B,
            self.scale,
            out=out_THD,
            workspace=self.workspace,
            is_dependent=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAttention:
    """Rows of any number of tokens."""

    block_table_BM: torch.Tensor
    cu_seqlens_q: torch.Tensor
    """(B + 1,) int32, from 0."""
    seq_lens_B: torch.Tensor
    max_seqlen_q: int
    scale: float

    def __call__(self, q_THD: torch.Tensor, cache: KvCache, out_THD: torch.Tensor) -> None:
        """Attend; see model.fused_decoder.Attend."""
        paged_prefill(
            q_THD,
            *cache,
            self.block_table_BM,
            self.cu_seqlens_q,
            self.seq_lens_B,
            self.max_seqlen_q,
            self.scale,
            out=out_THD,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAttention:
    """Rows of one token first, then the others; either may be missing."""

    num_decode_rows: int
    decode: DecodeAttention | None
    prefill: PrefillAttention | None

    def __call__(self, q_THD: torch.Tensor, cache: KvCache, out_THD: torch.Tensor) -> None:
        """Attend; see model.fused_decoder.Attend."""
        split = self.num_decode_rows
        if self.decode is not None:
            self.decode(q_THD[:split], cache, out_THD[:split])
        if self.prefill is not None:
            self.prefill(q_THD[split:], cache, out_THD[split:])
