"""A lease under way: which rows its next iteration computes, and what is told of each row.

A row takes part until its grant is used up or its lane has sampled a stop id; iterations go on while
any row does. Where the device runs ahead, a stop id is known one iteration late: what the lane computed
meanwhile, in its own blocks, is not told. Knows nothing about devices or who takes over when.
"""

from dataclasses import dataclass

import numpy as np

from worker_svc.batch.checks import check_rows
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import BoolArray, Int32Array, Int64Array, Logprobs, SampledTokens, Step
from worker_svc.batch.step_rows import NO_APPENDS, StepRows
from worker_svc.errors import ProtocolError

MAX_LEASE_STEPS = 64
ENDED = -1
"""Told for a row that had ended before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveRows:
    """The rows of a lease that go on, as of a number of changes of the lanes' ends."""

    rows: Int64Array
    lanes: Int64Array
    num_granted: int
    """Iterations that all of them take part in, unless a stop id is sampled."""
    num_changes: int


class Lease:
    """One lease, from its step on until its last iteration.

    Raises:
        ProtocolError: if the step is no lease that the lanes can run.
    """

    def __init__(self, table: SequenceTable, step: Step) -> None:
        self.step_id = step.step_id
        self.num_iterations = 0
        """Iterations begun."""
        self._table = table
        self._takes_over = step.takes_over
        self._num_steps = step.num_steps
        self._changes: StepRows | None = table.apply(step)
        """What the step changed before its rows, until that is handed on."""
        self._lanes = table.lanes_of(step)
        self._num_granted = step.row_num_tokens.astype(np.int64)
        _check_lease(table, step, lanes=self._lanes, num_granted=self._num_granted)
        self._live: _LiveRows | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all iterations have begun."""
        return self.num_iterations == self._num_steps

    @property
    def is_first_due(self) -> bool:
        """Whether an iteration runs whatever takes over: leases that take each other over must get on."""
        return self._takes_over and self.num_iterations == 0

    def next_iteration(self) -> "LeaseIteration | None":
        """Begin the next iteration; None where all rows have ended."""
        live = self._live_rows()
        if not len(live.rows):
            return None
        changes = self.take_changes()
        appends = NO_APPENDS if changes is None else changes.appends
        iteration = LeaseIteration(
            number=self.num_iterations,
            table=self._table,
            rows=self._table.decode_rows(live.lanes, step_id=self.step_id, appends=appends),
            row_indices=live.rows,
            num_rows=len(self._lanes),
        )
        self.num_iterations += 1
        return iteration

    def _live_rows(self) -> "_LiveRows":
        """Tell the rows that take part in the next iteration: the same object while they are the same."""
        live, num_changes = self._live, self._table.ends.num_changes
        if live is None or num_changes != live.num_changes or self.num_iterations >= live.num_granted:
            is_live = (self._num_granted > self.num_iterations) & ~self._table.ends.has_ended[self._lanes]
            rows = is_live.nonzero()[0]
            is_all = len(rows) == len(self._lanes)
            live = self._live = _LiveRows(
                rows=rows,
                lanes=self._lanes if is_all else self._lanes[rows],
                num_granted=int(self._num_granted[rows].min(initial=self._num_steps)),
                num_changes=num_changes,
            )
        return live

    def take_changes(self) -> StepRows | None:
        """Hand on what the step changed before its rows, if no iteration has done so."""
        changes, self._changes = self._changes, None
        return changes


class LeaseIteration:
    """One iteration of a lease, and how its tokens are told."""

    def __init__(
        self, *, number: int, table: SequenceTable, rows: StepRows, row_indices: Int64Array, num_rows: int
    ) -> None:
        self.number = number
        self.rows = rows
        self._table = table
        self._row_indices = row_indices
        self._num_rows = num_rows
        self._watched = table.watch(rows)
        self._num_changes = table.ends.num_changes

    def told(self, sampled: SampledTokens) -> SampledTokens:
        """Give each of the lease's rows its token, or -1, and note the stop ids among them.

        Iterations must come in order.
        """
        ends = self._table.ends
        is_whole = len(self._row_indices) == self._num_rows and ends.num_changes == self._num_changes
        # Nothing has ended since the launch: most iterations are told as they were sampled.
        told = sampled if is_whole else self._told_of_all(sampled, ~ends.has_ended[self.rows.lanes])
        ends.note_sampled(self._watched, sampled.token_ids, positions=self.rows.starts + 1)
        return told

    def _told_of_all(self, sampled: SampledTokens, goes_on: BoolArray) -> SampledTokens:
        token_ids = np.full(self._num_rows, ENDED, np.int32)
        token_ids[self._row_indices[goes_on]] = sampled.token_ids[goes_on]
        logprobs = sampled.logprobs
        return SampledTokens(
            token_ids=token_ids, logprobs=None if logprobs is None else self._spread(logprobs, goes_on)
        )

    def _spread(self, logprobs: Logprobs, goes_on: BoolArray) -> Logprobs:
        """Give each of the lease's rows its entries; none to those that have ended."""
        counts: Int32Array = np.zeros(self._num_rows, np.int32)
        counts[self._row_indices[goes_on]] = logprobs.counts[goes_on]
        is_kept = np.repeat(goes_on, logprobs.counts)
        return Logprobs(counts=counts, token_ids=logprobs.token_ids[is_kept], values=logprobs.values[is_kept])


def _check_lease(table: SequenceTable, step: Step, *, lanes: Int64Array, num_granted: Int64Array) -> None:
    """Raise unless every row is a decode with blocks for its grant."""
    if step.num_steps > MAX_LEASE_STEPS:
        raise ProtocolError.of("num_steps", step.num_steps, f"be at most {MAX_LEASE_STEPS}")
    if step.admissions or not step.row_samples.all():
        raise ProtocolError.of("num_steps", step.num_steps, "be 1: the step has rows that are no decodes")
    known, slots, most = table.num_known[lanes], table.num_slots[lanes], table.max_total[lanes]
    computed = table.num_computed[lanes]
    field, rule = "tokens computed", "be {limit}, one less than known, because the row is a lease's"
    check_rows(computed + 1 == known, lanes, field=field, values=computed, limits=known - 1, rule=rule)
    field, rule = "row_num_tokens", "be at most {limit}, the steps of the lease"
    steps = np.full(len(lanes), step.num_steps)
    check_rows(num_granted <= steps, lanes, field=field, values=num_granted, limits=steps, rule=rule)
    field, ends, rule = (
        "end of the row",
        computed + num_granted,
        "be at most {limit}, the slots of its blocks",
    )
    check_rows(ends <= slots, lanes, field=field, values=ends, limits=slots, rule=rule)
    field, totals, rule = (
        "tokens with those sampled",
        known + num_granted,
        "be at most {limit}, its max_total_tokens",
    )
    check_rows(totals <= most, lanes, field=field, values=totals, limits=most, rule=rule)
