"""Launches a whole decode step: from lanes and positions to sampled tokens in the token pool.

Everything it reads and writes stays where it is, so that it can be captured as a graph. Padding rows
write nothing. Knows nothing about what a step's rows are.
Legend: B rows, padding included; A appended blocks (B of them); W int32 words; R as B.
"""

from dataclasses import dataclass

import torch

from kernels.lane_step import LaneStep
from kernels.prepare import prepare_decode
from model.fused_decoder import FusedStep
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.padding import DecodeLayout, DecodeWords
from worker_svc.runner.staging import StagingBuffer
from worker_svc.runner.step_parts import StepParts


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedInputs:
    """One staging buffer as the inputs of one batch size. Cut once: slicing tensors takes 2 us a slice."""

    host: DecodeWords
    host_W: torch.Tensor
    """The same memory."""
    words_W: torch.Tensor
    """Where it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """One batch size's inputs, as worker_svc.batch.padding lays them out, and what is made of them."""

    words_W: torch.Tensor
    append_cells_A: torch.Tensor
    append_block_ids_A: torch.Tensor
    lanes_B: torch.Tensor
    positions_B: torch.Tensor
    order_B: torch.Tensor
    input_ids_B: torch.Tensor
    slot_mapping_B: torch.Tensor
    seq_lens_B: torch.Tensor


class DecodeStep:
    """Decode steps of every batch size, over one memory."""

    def __init__(self, parts: StepParts) -> None:
        max_rows, device = parts.limits.max_num_seqs, parts.device
        self._parts = parts
        num_words = DecodeLayout(num_rows=max_rows).num_words
        self._words_W = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._input_ids_B = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._slot_mapping_B = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._seq_lens_B = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._inputs: dict[int, DecodeInputs] = {}
        self._staged: dict[tuple[StagingBuffer, int], StagedInputs] = {}

    def stage(self, num_rows: int, batch: InputBatch | None) -> None:
        """Queue the copy of a step's inputs; None: padding only."""
        ring = self._parts.ring
        buffer = ring.take()
        staged = self._staged.get((buffer, num_rows))
        if staged is None:
            staged = self._staged[buffer, num_rows] = self._cut(buffer, num_rows)
        if batch is None:
            staged.host.write_padding()
        else:
            staged.host.write(batch)
        staged.words_W.copy_(staged.host_W, non_blocking=True)
        ring.guard(buffer)

    def inputs(self, num_rows: int) -> DecodeInputs:
        """Return this batch size's inputs; sizes share memory."""
        if num_rows not in self._inputs:
            self._inputs[num_rows] = self._make_inputs(num_rows)
        return self._inputs[num_rows]

    def launch(self, num_rows: int, flavour: SamplingFlavour) -> None:
        """Queue all kernels of the step whose inputs lie there; tokens go to the pool and the parts."""
        parts, inputs = self._parts, self.inputs(num_rows)
        tables = parts.tables
        tables.block_cells_W.scatter_(0, inputs.append_cells_A, inputs.append_block_ids_A)
        prepare_decode(
            inputs.lanes_B,
            inputs.positions_B,
            tables.token_pool_LP,
            tables.block_table_LM,
            parts.limits.block_size,
            inputs.input_ids_B,
            inputs.slot_mapping_B,
            inputs.seq_lens_B,
        )
        logits_RV = parts.logits_RV[:num_rows]
        parts.decoder.decode(self._model_step(inputs), parts.kv_caches, out_TV=logits_RV)
        parts.sampler.sample(
            logits_RV,
            lanes_R=inputs.lanes_B,
            positions_R=inputs.positions_B,
            flavour=flavour,
            out_R=parts.token_ids_R[:num_rows],
        )

    def _model_step(self, inputs: DecodeInputs) -> FusedStep:
        parts = self._parts
        rows = LaneStep(
            block_table_LM=parts.tables.block_table_LM,
            lanes_B=inputs.lanes_B,
            seq_lens_B=inputs.seq_lens_B,
            num_decode_rows=len(inputs.lanes_B),
            order_B=inputs.order_B,
        )
        return FusedStep(
            input_ids_T=inputs.input_ids_B,
            positions_T=inputs.positions_B,
            slot_mapping_T=inputs.slot_mapping_B,
            attention=parts.attention,
            attention_plan=parts.attention.plan_lanes(rows),
        )

    def _cut(self, buffer: StagingBuffer, num_rows: int) -> StagedInputs:
        num_words = DecodeLayout(num_rows=num_rows).num_words
        return StagedInputs(
            host=DecodeWords(buffer.words[:num_words], num_rows=num_rows, table=self._parts.tables.shape),
            host_W=buffer.tensor_W[:num_words],
            words_W=self.inputs(num_rows).words_W,
        )

    def _make_inputs(self, num_rows: int) -> DecodeInputs:
        layout = DecodeLayout(num_rows=num_rows)
        words_W, stride = self._words_W[: layout.num_words], layout.stride
        block_ids_A, lanes_B, positions_B, order_B = (
            words_W[part * stride : part * stride + num_rows] for part in (2, 3, 4, 5)
        )
        return DecodeInputs(
            words_W=words_W,
            append_cells_A=words_W[: 2 * stride].view(torch.int64)[:num_rows],
            append_block_ids_A=block_ids_A,
            lanes_B=lanes_B,
            positions_B=positions_B,
            order_B=order_B,
            input_ids_B=self._input_ids_B[:num_rows],
            slot_mapping_B=self._slot_mapping_B[:num_rows],
            seq_lens_B=self._seq_lens_B[:num_rows],
        )
