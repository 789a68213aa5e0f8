"""Applies steps to the sequence table and hands the batches to a model runner.

One executor serves one epoch after the other. Knows nothing about streams, threads or tensors;
it is not thread-safe.
"""

import time
from dataclasses import dataclass

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Step, StepResult
from worker_svc.runner.interface import LaunchedStep, ModelRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step that was launched and not yet waited for."""

    step_id: int
    start_time_ns: int
    launched: LaunchedStep

    def finish(self) -> StepResult:
        """Wait for the step's tokens."""
        sampled = self.launched.wait()
        step_time_ns = time.perf_counter_ns() - self.start_time_ns
        return StepResult(step_id=self.step_id, sampled=sampled, step_time_ns=step_time_ns)


class StepExecutor:
    """The sequence table and the runner of one worker."""

    def __init__(self, limits: TableLimits, runner: ModelRunner) -> None:
        self.limits = limits
        """What steps may ask for."""
        self._table = SequenceTable(limits)
        self._runner = runner

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
        """Apply the step and launch its rows.

        Raises:
            ProtocolError: if the step breaks the rules of the stream; the epoch is over then.
        """
        start_time_ns = time.perf_counter_ns()
        batch = InputBatch(self._table, self._table.apply(step))
        launched = self._runner.launch(batch, step.admissions)
        return PendingStep(step_id=step.step_id, start_time_ns=start_time_ns, launched=launched)
