"""The attention backend made of our own Triton kernels: the default on GPUs.

Decode rows go to one kernel, which reads their tables by lane; the others to the prefill kernels, by their
lists of tiles: prompts that begin in this step to one, those that go on to another. Where all are decode
rows, and few, one launch takes them from the QKV projection to attention's output. Nothing here waits for
the device, and a plan of decode rows launches nothing, so that both can be captured in a graph. Knows
nothing about models or requests.

Shapes: T packed tokens, B rows, L lanes, M blocks a table, N blocks, S block size, H heads, K KV heads,
D head dim.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.decode_config import DecodeConfig, DecodeWorkspace, fuses_decode
from kernels.lane_step import LaneStep, lane_step_of
from kernels.paged_decode import decode_config_for, paged_decode
from kernels.paged_prefill import FreshRows, can_read_fresh, paged_prefill
from kernels.qkv_decode import qkv_decode
from kernels.qkv_rows import QkvRows, rotate_and_store
from kernels.store_kv import store_kv

if TYPE_CHECKING:
    from kernels.attention_backend import StepMetadata


LEAST_ROWS_BESIDE = 16
"""Of decode rows beside prompts, as far as their launch's shape goes. That of fewer is of no captured step:
it would be compiled, for a second, while clients wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """What all layers of a step share."""

    step: LaneStep
    slot_mapping_T: torch.Tensor | None
    """None where somebody else stores K and V."""


class TritonAttentionBackend:
    """Attention by qkv_decode, paged_decode and paged_prefill.

    Args:
        workspace: for decode rows that are split; steps in stream order share it. Made anew for each
            launch where None, which a captured graph cannot do.
    """

    name = "triton"
    captures_prefill = True

    def __init__(self, workspace: DecodeWorkspace | None = None) -> None:
        self._workspace = workspace

    def plan(self, step: "StepMetadata") -> TritonPlan:
        """Plan a step whose tables come by row."""
        return self.plan_lanes(lane_step_of(step), slot_mapping_T=step.slot_mapping_T)

    def plan_lanes(self, step: LaneStep, *, slot_mapping_T: torch.Tensor | None = None) -> TritonPlan:
        """Plan a step whose tables come by lane; slots are needed only where store is called."""
        return TritonPlan(step=step, slot_mapping_T=slot_mapping_T)

    def store(
        self,
        key_TKD: torch.Tensor,
        value_TKD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: TritonPlan,
    ) -> None:
        """Write each token's K and V into its slot; negative slots are skipped."""
        assert plan.slot_mapping_T is not None, "the plan was made without slots"
        store_kv(key_TKD, value_TKD, key_cache_NSKD, value_cache_NSKD, plan.slot_mapping_T)

    def attend(
        self,
        q_THD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: TritonPlan,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return out_THD: each token's causal attention over its row's context."""
        step, caches = plan.step, (key_cache_NSKD, value_cache_NSKD)
        out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
        self._decode(q_THD, caches, step, out)
        if step.prefill is not None:
            self._prefill(q_THD, None, caches, step, out)
        return out

    def attend_qkv(
        self,
        rows: QkvRows,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: TritonPlan,
        *,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Write each token's K and V into its slot, and return out_THD as attend does."""
        caches, step = (key_cache_NSKD, value_cache_NSKD), plan.step
        is_projected = rows.residual_TE is None and not rows.is_stored
        if is_projected and step.prefill is None and fuses_decode(len(out), key_cache_NSKD.shape[2]):
            return self._decode_qkv(rows, caches, step, out)
        if step.prefill is None or not can_read_fresh(rows.qkv_TX, out.shape[2]):
            return self.attend(rotate_and_store(rows, *caches), *caches, plan, out=out)
        # At 16 prompts of 1,024 tokens 200 us of attention instead of 240, for 8 us more here (H200).
        q_THD = rotate_and_store(rows, *caches, in_place=True)
        self._decode(q_THD, caches, step, out)
        num_queries, num_keys = q_THD[0].numel(), key_cache_NSKD[0, 0].numel()
        _, key_TX, value_TX = rows.qkv_TX.split((num_queries, num_keys, num_keys), 1)
        self._prefill(q_THD, FreshRows(key_TX=key_TX, value_TX=value_TX), caches, step, out)
        return out

    def _decode(
        self,
        q_THD: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        step: LaneStep,
        out_THD: torch.Tensor,
    ) -> None:
        """Attend with the decode rows, whose new keys and values are stored."""
        num_rows = step.num_decode_rows
        if num_rows == 0:
            return
        paged_decode(
            q_THD[:num_rows],
            *caches,
            step.block_table_LM,
            step.lanes_B[:num_rows],
            step.seq_lens_B[:num_rows],
            q_THD.shape[2] ** -0.5,
            order_B=step.order_B,
            out=out_THD[:num_rows],
            workspace=self._workspace,
            config=None if step.prefill is None else _config_beside_prompts(caches[0], step),
            is_dependent=True,
        )

    def _decode_qkv(
        self,
        rows: QkvRows,
        caches: tuple[torch.Tensor, torch.Tensor],
        step: LaneStep,
        out_BHD: torch.Tensor,
    ) -> torch.Tensor:
        return qkv_decode(
            rows.qkv_TX,
            rows.cos_sin_PD,
            rows.q_norm_D,
            rows.k_norm_D,
            rows.eps,
            *caches,
            rows.slot_mapping_T,
            step.block_table_LM,
            step.lanes_B,
            step.seq_lens_B,
            out_BHD.shape[2] ** -0.5,
            out=out_BHD,
            workspace=self._workspace,
            is_dependent=True,
        )

    def _prefill(
        self,
        q_THD: torch.Tensor,
        fresh: FreshRows | None,
        caches: tuple[torch.Tensor, torch.Tensor],
        step: LaneStep,
        out_THD: torch.Tensor,
    ) -> None:
        """Attend with the prefill rows: to new K and V as they are fresh, to others in the cache.

        Their launches read what was there before the first of them and write rows of their own, so that each
        fills the multiprocessors that the one in front leaves. The first waits for the decode rows, of which
        padded ones write zeros to others' rows.
        """
        assert step.prefill is not None
        for number, tiles in enumerate(step.prefill.tiles or (None,)):
            paged_prefill(
                q_THD,
                *caches,
                step.block_table_LM,
                step.lanes_B[step.num_decode_rows :],
                step.prefill.cu_seqlens_q,
                step.seq_lens_B[step.num_decode_rows :],
                q_THD.shape[2] ** -0.5,
                tiles=tiles,
                fresh=fresh,
                out=out_THD,
                is_beside=number > 0,
            )


def _config_beside_prompts(cache_NSKD: torch.Tensor, step: LaneStep) -> DecodeConfig:
    return decode_config_for(
        max(step.num_decode_rows, LEAST_ROWS_BESIDE),
        step.block_table_LM.shape[1] * cache_NSKD.shape[1],
        cache_NSKD=cache_NSKD,
        is_ordered=step.order_B is not None,
    )
