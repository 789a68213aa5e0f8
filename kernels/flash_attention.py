"""The attention backend made of the flash-attn package's kernels, for who wants to compare.

Imports the package, which few machines have. Knows nothing about models or requests.

Shapes: T packed tokens, B rows, M blocks a table, N blocks, S block size, H heads, K KV heads, D head
dim.
Source: FlashAttention-2 (Dao, 2023), https://github.com/Dao-AILab/flash-attention.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

from kernels.lane_step import LaneStep, PrefillRows, lane_step_of
from kernels.qkv_rows import QkvRows, rotate_and_store
from kernels.store_kv import store_kv

if TYPE_CHECKING:
    from kernels.attention_backend import StepMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashPlan:
    """What all layers of a step share."""

    num_decode_rows: int
    block_table_BM: torch.Tensor
    """Of all rows: the package reads tables by row."""
    seq_lens_B: torch.Tensor
    prefill: PrefillRows | None
    cu_seqlens_k: torch.Tensor | None
    """Running sum of the prefill rows' context lengths, from 0."""
    slot_mapping_T: torch.Tensor | None
    """None where somebody else stores K and V."""


class FlashAttentionBackend:
    """Attention by flash_attn_with_kvcache and flash_attn_varlen_func."""

    name = "flash-attn"
    captures_prefill = False

    def plan(self, step: "StepMetadata") -> FlashPlan:
        """Plan a step whose tables come by row."""
        return self.plan_lanes(lane_step_of(step), slot_mapping_T=step.slot_mapping_T)

    def plan_lanes(self, step: LaneStep, *, slot_mapping_T: torch.Tensor | None = None) -> FlashPlan:
        """Plan a step whose tables come by lane; slots are needed only where store is called."""
        cu_seqlens_k = None
        if step.prefill is not None:
            seq_lens_B = step.seq_lens_B[step.num_decode_rows :]
            cu_seqlens_k = torch.nn.functional.pad(seq_lens_B.cumsum(0, dtype=torch.int32), (1, 0))
        return FlashPlan(
            num_decode_rows=step.num_decode_rows,
            # Padding reads lane 0's table, and none of its blocks: its length is 0.
            block_table_BM=step.block_table_LM.index_select(0, step.lanes_B.clamp(min=0)),
            seq_lens_B=step.seq_lens_B,
            prefill=step.prefill,
            cu_seqlens_k=cu_seqlens_k,
            slot_mapping_T=slot_mapping_T,
        )

    def store(
        self,
        key_TKD: torch.Tensor,
        value_TKD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: FlashPlan,
    ) -> None:
        """Write each token's K and V into its slot; negative slots are skipped."""
        assert plan.slot_mapping_T is not None, "the plan was made without slots"
        store_kv(key_TKD, value_TKD, key_cache_NSKD, value_cache_NSKD, plan.slot_mapping_T)

    def attend(
        self,
        q_THD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: FlashPlan,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return out_THD: each token's causal attention over its row's context."""
        num_decode_rows = plan.num_decode_rows
        out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
        if num_decode_rows:
            out_B1HD = flash_attn_with_kvcache(
                q_THD[:num_decode_rows, None],
                key_cache_NSKD,
                value_cache_NSKD,
                cache_seqlens=plan.seq_lens_B[:num_decode_rows],
                block_table=plan.block_table_BM[:num_decode_rows],
                causal=True,
            )
            out[:num_decode_rows] = out_B1HD[:, 0]
        if plan.prefill is not None:
            out_THD = flash_attn_varlen_func(
                q_THD,
                key_cache_NSKD,
                value_cache_NSKD,
                cu_seqlens_q=plan.prefill.cu_seqlens_q,
                cu_seqlens_k=plan.cu_seqlens_k,
                max_seqlen_q=plan.prefill.max_seqlen_q,
                max_seqlen_k=plan.block_table_BM.shape[1] * key_cache_NSKD.shape[1],
                block_table=plan.block_table_BM[num_decode_rows:],
                causal=True,
            )
            out[num_decode_rows:] = out_THD[num_decode_rows:]
        return out

    def attend_qkv(
        self,
        rows: QkvRows,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: FlashPlan,
        *,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Write each token's K and V into its slot, and return out_THD as attend does."""
        q_THD = rotate_and_store(rows, key_cache_NSKD, value_cache_NSKD)
        return self.attend(q_THD, key_cache_NSKD, value_cache_NSKD, plan, out=out)
