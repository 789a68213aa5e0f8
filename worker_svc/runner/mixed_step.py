"""Launches a step with prefill rows, kernel by kernel: rows of one token first, then the others.

Knows nothing about lanes' lengths or requests.
Legend: T packed tokens, B rows, D decode rows, M blocks a table, R sampling rows.
"""

import numpy as np
import torch

from kernels.lane_step import LaneStep, PrefillRows
from kernels.prepare import prepare_decode
from model.fused_decoder import FusedStep
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.sampling_rows import SamplingRows
from worker_svc.runner.step_parts import StepParts

Uploaded = dict[str, torch.Tensor]


class MixedStep:
    """Steps of any rows, over one memory."""

    def __init__(self, parts: StepParts) -> None:
        max_tokens, device = parts.limits.max_num_batched_tokens, parts.device
        self._parts = parts
        self._input_ids_T = torch.zeros(max_tokens, dtype=torch.int32, device=device)
        self._slot_mapping_T = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._seq_lens_T = torch.zeros(max_tokens, dtype=torch.int32, device=device)

    def launch(self, batch: InputBatch) -> int:
        """Queue all kernels of the step; tokens go to the pool and the parts.

        Returns:
            How many rows sample.
        """
        parts, rows = self._parts, batch.sampling
        on_device = parts.upload.upload(_arrays(batch, rows))
        hidden_TE = parts.decoder.forward(self._model_step(batch, on_device), parts.kv_caches)
        num_sampling = len(rows.lanes)
        if num_sampling == 0:
            return 0
        logits_RV = parts.logits_RV[:num_sampling]
        parts.decoder.compute_logits(hidden_TE.index_select(0, on_device["token_rows"]), logits_RV)
        parts.sampler.sample(
            logits_RV,
            lanes_R=on_device["sampling_lanes"],
            positions_R=on_device["last_positions"],
            flavour=rows.flavour,
            out_R=parts.token_ids_R[:num_sampling],
        )
        return num_sampling

    def _model_step(self, batch: InputBatch, on_device: Uploaded) -> FusedStep:
        tables, num_tokens = self._parts.tables, batch.num_tokens
        prepared = (
            self._input_ids_T[:num_tokens],
            self._slot_mapping_T[:num_tokens],
            self._seq_lens_T[:num_tokens],
        )
        prepare_decode(
            on_device["token_lanes"],
            on_device["positions"],
            tables.token_pool_LP,
            tables.block_table_LM,
            self._parts.limits.block_size,
            *prepared,
        )
        return FusedStep(
            input_ids_T=prepared[0],
            positions_T=on_device["positions"],
            slot_mapping_T=prepared[1],
            attention=self._parts.attention,
            attention_plan=self._parts.attention.plan_lanes(self._rows(batch, on_device)),
        )

    def _rows(self, batch: InputBatch, on_device: Uploaded) -> LaneStep:
        num_decode_rows, prefill = batch.num_decode_rows, None
        if num_decode_rows < batch.num_rows:
            prefill = PrefillRows(
                cu_seqlens_q=on_device["prefill_cu_seqlens"], max_seqlen_q=int(batch.query_lens.max())
            )
        return LaneStep(
            block_table_LM=self._parts.tables.block_table_LM,
            lanes_B=on_device["lanes"],
            seq_lens_B=on_device["seq_lens"],
            num_decode_rows=num_decode_rows,
            prefill=prefill,
        )


def _arrays(batch: InputBatch, rows: SamplingRows) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return what the device is told of the step: seven words a row, two a token."""
    num_decode_rows = batch.num_decode_rows
    return {
        "token_lanes": batch.token_lanes.astype(np.int32),
        "positions": batch.positions.astype(np.int32),
        "lanes": batch.lanes.astype(np.int32),
        "seq_lens": batch.seq_lens,
        "prefill_cu_seqlens": batch.cu_seqlens_q[num_decode_rows:] - np.int32(num_decode_rows),
        "token_rows": rows.token_rows.astype(np.int32),
        "sampling_lanes": rows.lanes.astype(np.int32),
        "last_positions": (rows.positions - 1).astype(np.int32),
    }
