"""A rank that follows: does with its step executor what the leading rank says it does with its own.

Both go through the same calls in the same order, and sample the same tokens, so their lanes are the
same. Knows nothing about how messages come, nor about streams: nobody reads this rank's results.
"""

from collections import deque
from collections.abc import Callable

from worker_svc.batch.lease import Lease
from worker_svc.batch.step import Step
from worker_svc.errors import ProtocolError
from worker_svc.runner.executor import Executor
from worker_svc.runner.step_executor import PendingStep
from worker_svc.tp.commands import Command


class Follower:
    """One following rank."""

    def __init__(self, executor: Executor, read_step: Callable[[bytes], Step]) -> None:
        """Make it.

        Args:
            executor: This rank's own.
            read_step: Reads a serialized step.
        """
        self._executor = executor
        self._read_step = read_step
        self._pending: deque[PendingStep] = deque()
        self._lease: Lease | None = None
        self._is_broken = False
        """Whether a step broke the stream's rules: the leading rank has refused it, too."""

    def take(self, message: bytes) -> None:
        """Do what a message says.

        Raises:
            AssertionError: if this rank is not where the leading one is.
        """
        command = Command(message[0])
        if command == Command.START_EPOCH:
            self._start_epoch()
        elif command == Command.FINISH:
            self._executor.finish(self._pending.popleft())
        else:
            assert not self._is_broken, "the leading rank goes on after a step that broke the rules here"
            try:
                self._launch(command, message[1:])
            except ProtocolError:
                # Told to the engine by the leading rank.
                self._is_broken, self._lease = True, None

    def _start_epoch(self) -> None:
        while self._pending:
            self._pending.popleft().launched.wait_until_computed()
        self._executor.start_epoch()
        self._lease, self._is_broken = None, False

    def _launch(self, command: Command, data: bytes) -> None:
        if command == Command.STEP:
            self._begin(self._read_step(data))
            return
        lease = self._lease
        assert lease is not None, "no lease is under way here"
        if command == Command.END_LEASE:
            self._lease = None
            self._pending.append(self._executor.end_lease(lease))
        elif (pending := self._executor.launch_iteration(lease)) is not None:
            self._pending.append(pending)

    def _begin(self, step: Step) -> None:
        if step.num_steps > 1:
            self._lease = self._executor.begin_lease(step)
        else:
            self._pending.append(self._executor.launch(step))
