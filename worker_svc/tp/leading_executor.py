"""The leading rank's step executor: all that it does is told to the other ranks first.

What they do follows from what is told and from the tokens, which are the same on all ranks: nothing
else that this rank decides, such as when it looks for tokens or which step takes a lease over, is left
for them to guess. Knows nothing about how it is told.
"""

from collections.abc import Callable

from worker_svc.batch.lease import Lease
from worker_svc.batch.step import Step, StepResult
from worker_svc.runner.executor import Executor
from worker_svc.runner.step_executor import PendingStep
from worker_svc.tp.commands import COMMAND_BYTES, Command


class LeadingExecutor:
    """An Executor in front of the rank's own; see runner/step_executor.py for what each call does."""

    def __init__(self, executor: Executor, publish: Callable[[bytes], object]) -> None:
        """Make it.

        Args:
            executor: This rank's own.
            publish: Hands a message to all other ranks, in order.
        """
        self._executor = executor
        self._publish = publish

    @property
    def num_steps_ahead(self) -> int:
        """How many steps to launch before finishing the oldest."""
        return self._executor.num_steps_ahead

    @property
    def num_lanes_held(self) -> int:
        """Lanes held now."""
        return self._executor.num_lanes_held

    def start_epoch(self) -> None:
        """Forget all lanes."""
        self._publish(COMMAND_BYTES[Command.START_EPOCH])
        self._executor.start_epoch()

    def launch(self, step: Step) -> PendingStep:
        """Launch a step that is no lease."""
        self._publish_step(step)
        return self._executor.launch(step)

    def begin_lease(self, step: Step) -> Lease:
        """Begin a lease."""
        self._publish_step(step)
        return self._executor.begin_lease(step)

    def launch_iteration(self, lease: Lease) -> PendingStep | None:
        """Launch a lease's next iteration."""
        self._publish(COMMAND_BYTES[Command.GO_ON])
        return self._executor.launch_iteration(lease)

    def end_lease(self, lease: Lease) -> PendingStep:
        """End a lease."""
        self._publish(COMMAND_BYTES[Command.END_LEASE])
        return self._executor.end_lease(lease)

    def finish(self, pending: PendingStep) -> StepResult:
        """Wait for the oldest step's tokens."""
        self._publish(COMMAND_BYTES[Command.FINISH])
        return self._executor.finish(pending)

    def _publish_step(self, step: Step) -> None:
        assert step.serialized, "a step of a group keeps its bytes"
        self._publish(COMMAND_BYTES[Command.STEP] + step.serialized)
