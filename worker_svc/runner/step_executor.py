"""Applies steps to the sequence table and hands the batches to a model runner.

One executor serves one epoch after the other. Of a lease it launches one iteration at a time: whether
there is another is for the caller to ask. Knows nothing about streams, threads or tensors; it is not
thread-safe.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lease import Lease
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import SampledTokens, Step, StepResult
from worker_svc.batch.step_rows import StepRows
from worker_svc.runner.device_times import AwaitedIdle, DeviceTimes, StepTimes
from worker_svc.runner.interface import LaunchedStep, ModelRunner

_NO_TOKENS = SampledTokens(token_ids=np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step, or an iteration of a lease, that was launched and not yet waited for."""

    step_id: int
    start_time_ns: int
    launched: LaunchedStep
    tell: Callable[[SampledTokens], SampledTokens]
    """Turns what the device sampled into what the engine is told. Called once, in order."""
    host_times: StepTimes
    awaited_idle: AwaitedIdle
    is_awaited: bool
    """Whether lanes were held before it: else nobody minds that the device was idle."""
    iteration: int = 0
    num_iterations: int = 1
    is_last: bool = True

    def finish(self) -> StepResult:
        """Wait for the step's tokens."""
        sampled = self.tell(self.launched.wait())
        end_time_ns = time.perf_counter_ns()
        times = self.launched.device_times() or self.host_times.of(self.start_time_ns, end_time_ns)
        return StepResult(
            step_id=self.step_id,
            sampled=sampled,
            step_time_ns=end_time_ns - self.start_time_ns,
            busy_time_ns=times.busy_ns,
            idle_time_ns=self.awaited_idle.of(times, is_awaited=self.is_awaited),
            iteration=self.iteration,
            num_iterations=self.num_iterations,
            is_last=self.is_last,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingLaunched:
    """A LaunchedStep that never reached the device."""

    def wait(self) -> SampledTokens:
        """Return no tokens."""
        return _NO_TOKENS

    def wait_until_computed(self) -> None:
        """Wait for nothing."""

    def device_times(self) -> DeviceTimes:
        """Tell that it took nothing."""
        return DeviceTimes(busy_ns=0, idle_ns=0)


class StepExecutor:
    """The sequence table and the runner of one worker."""

    def __init__(self, limits: TableLimits, runner: ModelRunner) -> None:
        self.limits = limits
        """What steps may ask for."""
        self._table = SequenceTable(limits)
        self._runner = runner
        self._host_times = StepTimes()
        self._awaited_idle = AwaitedIdle()

    @property
    def num_steps_ahead(self) -> int:
        """How many steps to launch before finishing the oldest."""
        return self._runner.num_steps_ahead

    @property
    def num_lanes_held(self) -> int:
        """Lanes held now."""
        return self._table.num_lanes_held

    def start_epoch(self) -> None:
        """Forget all lanes: the next step is the first of an epoch."""
        self._table.reset()

    def launch(self, step: Step) -> PendingStep:
        """Apply a step that is no lease and launch its rows.

        Raises:
            ProtocolError: if the step breaks the rules of the stream; the epoch is over then.
        """
        assert step.num_steps == 1, "a lease is begun"
        start_time_ns, is_awaited = time.perf_counter_ns(), self.num_lanes_held > 0
        rows = self._table.apply(step)
        launched = self._runner.launch(InputBatch(self._table, rows), step.admissions)
        return PendingStep(
            step_id=step.step_id,
            start_time_ns=start_time_ns,
            launched=launched,
            tell=self._noting_ends(rows),
            host_times=self._host_times,
            awaited_idle=self._awaited_idle,
            is_awaited=is_awaited,
        )

    def begin_lease(self, step: Step) -> Lease:
        """Apply a lease's step; its iterations are still to be launched.

        Raises:
            ProtocolError: if the step breaks the rules of the stream; the epoch is over then.
        """
        return Lease(self._table, step)

    def launch_iteration(self, lease: Lease) -> PendingStep | None:
        """Launch a lease's next iteration; None where all its rows have ended, as far as is known."""
        start_time_ns = time.perf_counter_ns()
        iteration = lease.next_iteration()
        if iteration is None:
            return None
        return PendingStep(
            step_id=lease.step_id,
            start_time_ns=start_time_ns,
            launched=self._runner.launch(InputBatch(self._table, iteration.rows), ()),
            tell=iteration.told,
            host_times=self._host_times,
            awaited_idle=self._awaited_idle,
            is_awaited=True,
            iteration=iteration.number,
            is_last=lease.is_complete,
        )

    def end_lease(self, lease: Lease) -> PendingStep:
        """End a lease before its last iteration; what comes of it only tells that."""
        changes, launched = lease.take_changes(), None
        if changes is not None and len(changes.appends):
            launched = self._runner.launch(InputBatch(self._table, changes), ())
        return PendingStep(
            step_id=lease.step_id,
            start_time_ns=time.perf_counter_ns(),
            launched=launched or NothingLaunched(),
            tell=lambda _: _NO_TOKENS,
            host_times=self._host_times,
            awaited_idle=self._awaited_idle,
            is_awaited=True,
            iteration=lease.num_iterations,
            num_iterations=0,
        )

    def finish(self, pending: PendingStep) -> StepResult:
        """Wait for the tokens of the oldest step that was launched and not finished."""
        return pending.finish()

    def _noting_ends(self, rows: StepRows) -> Callable[[SampledTokens], SampledTokens]:
        """Make what notes the stop ids among a step's tokens, for leases that come after it."""
        ends, watched = self._table.ends, self._table.watch(rows)
        positions = (rows.starts + rows.num_tokens)[rows.samples] if rows.run is None else rows.starts + 1

        def tell(sampled: SampledTokens) -> SampledTokens:
            ends.note_sampled(watched, sampled.token_ids, positions=positions)
            return sampled

        return tell
