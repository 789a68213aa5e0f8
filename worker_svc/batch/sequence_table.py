"""The worker's copy of each lane: blocks, lengths, sampling parameters.

Applies steps and checks them against the rules of the stream. It never sees a sampled token: after
a sampling row a lane knows one token more, whose value is only in the token pool on the device.
Knows nothing about requests, tensors or streams.

    tokens of one lane, by absolute position

    |  computed (KV in the cache)  |  known, not computed  |  not yet  |
    0                   num_computed               num_known     max_total
"""

import numpy as np

from worker_svc.batch.checks import (
    TableLimits,
    check_admissions,
    check_distinct,
    check_equal_length,
    check_range,
    check_rows,
    has_equals,
)
from worker_svc.batch.decode_run import DecodeRun
from worker_svc.batch.lane_ends import LaneEnds, WatchedRows
from worker_svc.batch.lane_parameters import LaneParameters
from worker_svc.batch.step import Admission, BoolArray, Int32Array, Int64Array, Step
from worker_svc.batch.step_rows import NO_APPENDS, BlockAppends, StepRows, no_rows
from worker_svc.errors import ProtocolError


class SequenceTable:
    """All lanes of one epoch. After a ProtocolError its content is undefined until ``reset``."""

    def __init__(self, limits: TableLimits) -> None:
        self.limits = limits
        self.parameters = LaneParameters(limits.max_num_seqs)
        self.ends = LaneEnds(limits.max_num_seqs)
        self.block_table = np.zeros((limits.max_num_seqs, limits.max_blocks_per_seq), np.int32)
        self.num_blocks = np.zeros(limits.max_num_seqs, np.int64)
        self.num_slots = np.zeros(limits.max_num_seqs, np.int64)
        self.num_computed = np.zeros(limits.max_num_seqs, np.int64)
        self.num_known = np.zeros(limits.max_num_seqs, np.int64)
        self.num_prompt = np.zeros(limits.max_num_seqs, np.int64)
        self.max_total = np.zeros(limits.max_num_seqs, np.int64)
        self.incarnation = np.zeros(limits.max_num_seqs, np.uint64)
        self.is_held = np.zeros(limits.max_num_seqs, np.bool_)
        self._last_step_id = 0
        self._ones = np.ones(limits.max_num_seqs, np.int32).tobytes()
        self._rows_data: bytes | None = None
        """The rows that were checked last; None once any lane was released."""
        self._row_lanes: Int64Array = np.empty(0, np.int64)
        self._run: DecodeRun | None = None

    @property
    def num_lanes_held(self) -> int:
        """Lanes that are admitted and not released."""
        return int(np.count_nonzero(self.is_held))

    def reset(self) -> None:
        """Forget all lanes; the next step is the first of an epoch."""
        self.is_held[:] = False
        self._last_step_id = 0
        self._rows_data = self._run = None

    def apply(self, step: Step) -> StepRows:
        """Apply releases, admissions, block appends and rows, in this order.

        Returns:
            The rows, with the position each starts at; the lengths here already count them. Of a
            lease none: see lease.py.

        Raises:
            ProtocolError: naming field, value and limit.
        """
        appends = self._apply_changes(step)
        lanes = self.lanes_of(step)
        if step.num_steps > 1 or not len(lanes):
            return no_rows(step_id=step.step_id, appends=appends)
        if self._are_decodes(step):
            return self.decode_rows(lanes, step_id=step.step_id, appends=appends)
        num_tokens = step.row_num_tokens.astype(np.int64)
        return StepRows(
            step_id=step.step_id,
            lanes=lanes,
            num_tokens=num_tokens,
            starts=self._advance(lanes, num_tokens, samples=step.row_samples),
            samples=step.row_samples,
            num_tokens_total=int(num_tokens.sum()),
            appends=appends,
        )

    def lanes_of(self, step: Step) -> Int64Array:
        """Check the rows' shapes and lanes, and return the lanes: the same array for the same rows.

        Raises:
            ProtocolError: naming field, value and limit.
        """
        data = step.row_lanes.tobytes()
        is_known = data == self._rows_data
        if not (is_known and self._are_decodes(step)):
            self._check_row_shapes(step)
        if not is_known:
            self._check_held("row_lanes", step.row_lanes)
            check_distinct("row_lanes", step.row_lanes)
            self._rows_data, self._row_lanes = data, step.row_lanes.astype(np.int64)
        return self._row_lanes

    def decode_rows(self, lanes: Int64Array, *, step_id: int, appends: BlockAppends) -> StepRows:
        """Compute one token of each of these lanes, which are some, and sample the next.

        Args:
            lanes: The same array as in the step before costs least.
            step_id: Of the step.
            appends: What it changed.

        Raises:
            ProtocolError: if a lane cannot go on so.
        """
        run = self._run
        if run is None or run.lanes is not lanes:
            run = self._run = self._begin_run(lanes)
        if not run.num_checked:
            self._check_run(run)
        starts = run.starts
        ends = run.go_on()
        self.num_computed[lanes] = ends
        self.num_known[lanes] = ends + 1
        return StepRows(
            step_id=step_id,
            lanes=lanes,
            num_tokens=run.num_tokens,
            starts=starts,
            samples=run.samples,
            num_tokens_total=len(lanes),
            appends=appends,
            run=run,
        )

    def watch(self, rows: StepRows) -> WatchedRows:
        """Take down what ends the requests of the rows that sample."""
        if rows.run is not None:
            return rows.run.watched
        return self.ends.watch(rows.lanes[rows.samples])

    def _apply_changes(self, step: Step) -> BlockAppends:
        """Apply all that comes before the rows; return what it appends."""
        if step.step_id != self._last_step_id + 1:
            raise ProtocolError.of("step_id", step.step_id, f"be {self._last_step_id + 1}: it grows by one")
        self._last_step_id = step.step_id
        if len(step.released_lanes):
            self._release(step.released_lanes)
        if step.admissions:
            check_admissions(step.admissions, self.limits)
            for admission in step.admissions:
                self._admit(admission)
        if len(step.append_lanes) or len(step.append_block_ids):
            return self._append_blocks(step.append_lanes, step.append_block_ids)
        return NO_APPENDS

    def _release(self, lanes: Int32Array) -> None:
        self._check_held("released_lanes", lanes)
        check_distinct("released_lanes", lanes)
        self.is_held[lanes] = False
        self._rows_data = self._run = None

    def _admit(self, admission: Admission) -> None:
        lane = admission.lane
        if self.is_held[lane]:
            raise ProtocolError.of("admission lane", lane, "name a lane that is free")
        num_blocks = len(admission.block_ids)
        self.block_table[lane, :num_blocks] = admission.block_ids
        self.num_blocks[lane] = num_blocks
        self.num_slots[lane] = num_blocks * self.limits.block_size
        self.num_computed[lane] = admission.num_computed_tokens
        self.num_known[lane] = len(admission.token_ids)
        self.num_prompt[lane] = admission.num_prompt_tokens
        self.max_total[lane] = admission.max_total_tokens
        self.incarnation[lane] = admission.incarnation
        self.parameters.set(lane, admission.sampling, num_prompt=admission.num_prompt_tokens)
        self.ends.admit(admission)
        self.is_held[lane] = True

    def _append_blocks(self, lanes: Int32Array, block_ids: Int32Array) -> BlockAppends:
        check_equal_length("append_block_ids", block_ids, of="append_lanes", num_expected=len(lanes))
        self._check_held("append_lanes", lanes)
        if np.maximum.reduce(block_ids.view(np.uint32) - 1) >= self.limits.num_blocks:
            check_range("append_block_ids", block_ids, low=1, high=self.limits.num_blocks)
        rows = lanes.astype(np.int64)
        columns = self.num_blocks[rows]
        if has_equals(rows):
            columns += _num_earlier_equals(rows)
        if np.maximum.reduce(columns) >= self.limits.max_blocks_per_seq:
            most = np.full(len(rows), self.limits.max_blocks_per_seq, np.int64)
            field, rule = "number of blocks", "be at most {limit}"
            check_rows(columns < most, rows, field=field, values=columns + 1, limits=most, rule=rule)
        self.block_table[rows, columns] = block_ids
        # Of a lane that stands here twice, the last one counts: the larger number.
        self.num_blocks[rows] = columns + 1
        self.num_slots[rows] = (columns + 1) * self.limits.block_size
        return BlockAppends(lanes=rows, columns=columns, block_ids=block_ids)

    def _are_decodes(self, step: Step) -> bool:
        """Tell whether each row computes one token and samples the next."""
        num_rows = len(step.row_lanes)
        # As bytes: 0.5 us whatever the number of rows.
        is_one = step.row_num_tokens.tobytes() == self._ones[: 4 * num_rows]
        return is_one and step.row_samples.tobytes() == b"\1" * num_rows

    def _check_row_shapes(self, step: Step) -> None:
        """Check rows without their lanes' state."""
        num_rows, most_tokens = len(step.row_lanes), self.limits.max_num_batched_tokens
        check_equal_length("row_num_tokens", step.row_num_tokens, of="row_lanes", num_expected=num_rows)
        check_equal_length("row_samples", step.row_samples, of="row_lanes", num_expected=num_rows)
        num_tokens = num_rows if step.num_steps > 1 else int(step.row_num_tokens.sum(dtype=np.int64))
        if num_rows and (np.minimum.reduce(step.row_num_tokens) < 1 or num_tokens > most_tokens):
            check_range("row_num_tokens", step.row_num_tokens, low=1, high=most_tokens)
            raise ProtocolError.of("sum of row_num_tokens", num_tokens, f"be at most {most_tokens}")

    def _begin_run(self, lanes: Int64Array) -> DecodeRun:
        starts = self.num_computed[lanes]
        num_until_length = int((self.max_total[lanes] - 1 - starts).min())
        run = DecodeRun(lanes, starts, num_until_length=num_until_length, watched=self.ends.watch(lanes))
        if not np.array_equal(starts + 1, self.num_known[lanes]):
            self._refuse_row_ends(lanes, starts + 1, samples=run.samples)
        return run

    def _check_run(self, run: DecodeRun) -> None:
        """Count the steps that all rows have slots and tokens left for."""
        num_slots_left = int((self.num_slots[run.lanes] - run.starts).min())
        run.num_checked = min(num_slots_left, run.num_until_length)
        if run.num_checked < 1:
            self._refuse_row_ends(run.lanes, run.starts + 1, samples=run.samples)

    def _advance(self, lanes: Int64Array, num_tokens: Int64Array, *, samples: BoolArray) -> Int64Array:
        """Count the rows' tokens as computed and known; return where each row starts."""
        self._run = None
        starts = self.num_computed[lanes]
        ends = starts + num_tokens
        known = self.num_known[lanes]
        total = known + samples
        is_right = (ends <= np.minimum(known, self.num_slots[lanes])) & (total <= self.max_total[lanes])
        is_right &= (ends == known) | ~samples
        if not is_right.all():
            self._refuse_row_ends(lanes, ends, samples=samples)
        self.num_computed[lanes] = ends
        self.num_known[lanes] = total
        return starts

    def _refuse_row_ends(self, lanes: Int64Array, ends: Int64Array, *, samples: BoolArray) -> None:
        """Raise for the first rule that a row breaks: told apart only when one is broken."""
        field = "end of the row"
        known, num_slots = self.num_known[lanes], self.num_slots[lanes]
        rule = "be at most {limit}, the tokens known"
        check_rows(ends <= known, lanes, field=field, values=ends, limits=known, rule=rule)
        rule = "be at most {limit}, the slots of its blocks"
        check_rows(ends <= num_slots, lanes, field=field, values=ends, limits=num_slots, rule=rule)
        rule = "be {limit}, the tokens known, because the row samples"
        check_rows(~samples | (ends == known), lanes, field=field, values=ends, limits=known, rule=rule)
        total, most = known + samples, self.max_total[lanes]
        field, rule = "tokens with the sampled one", "be at most {limit}, its max_total_tokens"
        check_rows(total <= most, lanes, field=field, values=total, limits=most, rule=rule)

    def _check_held(self, field: str, lanes: Int32Array) -> None:
        # As unsigned numbers, so that one comparison finds those below 0, too.
        if np.maximum.reduce(lanes.view(np.uint32), initial=0) >= self.limits.max_num_seqs:
            check_range(field, lanes, low=0, high=self.limits.max_num_seqs - 1)
        is_held = self.is_held[lanes]
        if not is_held.all():
            raise ProtocolError.of(field, int(lanes[is_held.argmin()]), "name lanes that are held")


def _num_earlier_equals(values: Int64Array) -> Int64Array:
    """Tell for each value how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    index = np.arange(len(values))
    result = np.empty(len(values), np.int64)
    result[order] = index - np.maximum.accumulate(np.where(is_first, index, 0))
    return result
