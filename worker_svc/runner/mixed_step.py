"""Launches a step with prefill rows, kernel by kernel: rows of one token first, then the others.

Knows nothing about lanes' lengths or requests.
Legend: T packed tokens, B rows, D decode rows, M blocks a table, R sampling rows.
"""

import numpy as np
import torch

from kernels.prepare import prepare_decode
from model.fused_decoder import FusedStep
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.sampling_rows import SamplingRows
from worker_svc.runner.step_attention import DecodeAttention, MixedAttention, PrefillAttention
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
            attend=self._attention(batch, on_device),
        )

    def _attention(self, batch: InputBatch, on_device: Uploaded) -> MixedAttention:
        num_decode_rows, tables = batch.num_decode_rows, self._parts.tables
        lanes_B, seq_lens_B = on_device["lanes"], on_device["seq_lens"]
        scale = self._parts.decoder.config.head_dim**-0.5
        decode = prefill = None
        if num_decode_rows:
            decode = DecodeAttention(
                block_table_LM=tables.block_table_LM,
                lanes_B=lanes_B[:num_decode_rows],
                seq_lens_B=seq_lens_B[:num_decode_rows],
                scale=scale,
                workspace=self._parts.attention_workspace,
            )
        if num_decode_rows < batch.num_rows:
            prefill = PrefillAttention(
                block_table_BM=tables.block_table_LM.index_select(0, lanes_B[num_decode_rows:]),
                cu_seqlens_q=on_device["prefill_cu_seqlens"],
                seq_lens_B=seq_lens_B[num_decode_rows:],
                max_seqlen_q=int(batch.query_lens.max()),
                scale=scale,
            )
        return MixedAttention(num_decode_rows=num_decode_rows, decode=decode, prefill=prefill)


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
