"""What applies steps, as the compute thread sees it: one rank's own executor, or one that leads others.

Knows nothing about streams, threads or ranks.
"""

from typing import Protocol

from worker_svc.batch.lease import Lease
from worker_svc.batch.step import Step, StepResult
from worker_svc.runner.step_executor import PendingStep


class Executor(Protocol):
    """Applies the steps of one epoch after the other; see StepExecutor for each call. Not thread-safe."""

    @property
    def num_steps_ahead(self) -> int:
        """How many steps to launch before finishing the oldest."""

    @property
    def num_lanes_held(self) -> int:
        """Lanes held now."""

    def start_epoch(self) -> None:
        """Forget all lanes: the next step is the first of an epoch."""

    def launch(self, step: Step) -> PendingStep:
        """Apply a step that is no lease and launch its rows."""

    def begin_lease(self, step: Step) -> Lease:
        """Apply a lease's step; its iterations are still to be launched."""

    def launch_iteration(self, lease: Lease) -> PendingStep | None:
        """Launch a lease's next iteration; None where all its rows have ended, as far as is known."""

    def end_lease(self, lease: Lease) -> PendingStep:
        """End a lease before its last iteration; what comes of it only tells that."""

    def finish(self, pending: PendingStep) -> StepResult:
        """Wait for the tokens of the oldest step that was launched and not finished."""
