"""Launches a whole decode step: from lanes and positions to sampled tokens in the token pool.

Everything it reads and writes stays where it is, so that it can be captured as a graph. Padding rows
write nothing. Knows nothing about what a step's rows are.
Legend: B rows, padding included; W int32 words; R as B.
"""

from dataclasses import dataclass

import torch

from kernels.begin_step import StepRows, begin_step
from kernels.lane_step import LaneStep
from model.fused_step import FusedStep
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.padding import DecodeLayout, DecodeWords
from worker_svc.runner.device_sampler import SampledRows
from worker_svc.runner.staging import StagingBuffer
from worker_svc.runner.step_inbox import StepInbox
from worker_svc.runner.step_parts import StepParts


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """What one batch size's kernels read: words as worker_svc.batch.padding lays them out, and others."""

    rows: StepRows
    lanes_B: torch.Tensor
    positions_B: torch.Tensor
    order_B: torch.Tensor


class DecodeStep:
    """Decode steps of every batch size, over one memory."""

    def __init__(self, parts: StepParts, *, told_2: torch.Tensor) -> None:
        """Allocate; told_2 is that of all steps, as kernels.step_times has it."""
        max_rows, device = parts.limits.max_num_seqs, parts.device
        self._parts = parts
        self._told_2 = told_2
        num_words = DecodeLayout(num_rows=max_rows).num_words
        self._inbox = StepInbox(num_words, device=device)
        self._words_W = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._input_ids_B = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._slot_mapping_B = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._seq_lens_B = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._inputs: dict[int, DecodeInputs] = {}
        self._words: dict[tuple[StagingBuffer, int], DecodeWords] = {}
        """By host buffer and batch size: cutting one takes longer than writing it."""

    def stage(self, num_rows: int, batch: InputBatch | None, *, told_address: int = 0) -> None:
        """Send a step's inputs; None: padding only. Its launch, or its graph's, and launched must follow.

        Args:
            num_rows: padded.
            batch: the step's.
            told_address: of memory for each row's token, which the device reaches, and for the step's times.
        """
        buffer = self._inbox.take()
        words = self._words.get((buffer, num_rows))
        if words is None:
            words = self._words[buffer, num_rows] = self._cut(buffer, num_rows)
        try:
            if batch is None:
                words.write_padding()
            else:
                words.write(batch, told_address=told_address)
        finally:
            # Of a step that failed, too: it is never launched, and the device is told the next one's turn.
            self._inbox.send(buffer, DecodeLayout(num_rows=num_rows).num_words)

    def launched(self) -> None:
        """Tell that the kernels of what was staged are queued."""
        self._inbox.launched()

    def inputs(self, num_rows: int) -> DecodeInputs:
        """Return this batch size's inputs; sizes share memory."""
        if num_rows not in self._inputs:
            self._inputs[num_rows] = self._make_inputs(num_rows)
        return self._inputs[num_rows]

    def launch(self, num_rows: int, flavour: SamplingFlavour) -> None:
        """Queue all kernels of the step whose turn it is; tokens go to the pool, the parts, and are told."""
        parts, inputs = self._parts, self.inputs(num_rows)
        tables = parts.tables
        begin_step(
            self._inbox.slots,
            tables.token_pool_LP,
            tables.block_table_LM,
            tables.block_cells_W,
            parts.limits.block_size,
            out=inputs.rows,
        )
        logits_RV = parts.logits_RV[:num_rows]
        rows = SampledRows(
            lanes_R=inputs.lanes_B,
            positions_R=inputs.positions_B,
            out_R=parts.token_ids_R[:num_rows],
            told_2=self._told_2,
        )
        is_summarized = parts.decoder.decode(
            self._model_step(inputs),
            parts.kv_caches,
            out_TV=logits_RV,
            summary=parts.sampler.summary(rows, flavour),
        )
        parts.sampler.sample(logits_RV, rows, flavour=flavour, is_summarized=is_summarized)

    def _model_step(self, inputs: DecodeInputs) -> FusedStep:
        parts = self._parts
        rows = LaneStep(
            block_table_LM=parts.tables.block_table_LM,
            lanes_B=inputs.lanes_B,
            seq_lens_B=inputs.rows.seq_lens_B,
            num_decode_rows=len(inputs.lanes_B),
            order_B=inputs.order_B,
        )
        return FusedStep(
            input_ids_T=inputs.rows.input_ids_B,
            positions_T=inputs.positions_B,
            slot_mapping_T=inputs.rows.slot_mapping_B,
            attention=parts.attention,
            attention_plan=parts.attention.plan_lanes(rows),
            is_decode=True,
        )

    def _cut(self, buffer: StagingBuffer, num_rows: int) -> DecodeWords:
        words = buffer.words[: DecodeLayout(num_rows=num_rows).num_words]
        return DecodeWords(words, num_rows=num_rows, table=self._parts.tables.shape)

    def _make_inputs(self, num_rows: int) -> DecodeInputs:
        layout = DecodeLayout(num_rows=num_rows)
        words_W, stride = self._words_W[: layout.num_words], layout.stride
        lanes_B, positions_B, order_B = (
            words_W[part * stride : part * stride + num_rows] for part in (3, 4, 5)
        )
        return DecodeInputs(
            rows=StepRows(
                words_W=words_W,
                input_ids_B=self._input_ids_B[:num_rows],
                slot_mapping_B=self._slot_mapping_B[:num_rows],
                seq_lens_B=self._seq_lens_B[:num_rows],
                told_2=self._told_2,
            ),
            lanes_B=lanes_B,
            positions_B=positions_B,
            order_B=order_B,
        )
