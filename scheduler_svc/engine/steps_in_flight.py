"""The steps sent to a worker and not answered: a FIFO that holds each answer to what was sent.

A step's time starts when it becomes the oldest: those behind it wait for it, not for the worker.
Knows nothing about streams, nor what time it is (the caller says so).
"""

from collections import deque
from dataclasses import dataclass

from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.engine.step_clock import StepClock, StepSize, size_of


class EpochEndedError(Exception):
    """The worker epoch ended, or must end; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentStep:
    step_id: int
    num_tokens: int
    """Sampling rows: as many tokens must come back."""
    size: StepSize


class StepsInFlight:
    """The steps of one epoch, oldest first."""

    def __init__(self, vocab_size: int, clock: StepClock) -> None:
        self._vocab_size = vocab_size
        self._clock = clock
        self._steps: deque[_SentStep] = deque()
        self._oldest_since_seconds = 0.0

    def __len__(self) -> int:
        """Tell how many steps are in flight."""
        return len(self._steps)

    def add(self, plan: StepPlan, now_seconds: float) -> None:
        """Note that a step was sent."""
        if not self._steps:
            self._oldest_since_seconds = now_seconds
        num_tokens = int(plan.row_samples.sum())
        self._steps.append(_SentStep(step_id=plan.step_id, num_tokens=num_tokens, size=size_of(plan)))

    def take_answer(self, result: StepResult, now_seconds: float) -> None:
        """Match a result with the oldest step, which is in flight no more.

        Raises:
            EpochEndedError: if it does not answer that step.
        """
        oldest = self._steps[0].step_id if self._steps else 0
        if result.step_id != oldest:
            raise EpochEndedError(
                f"the worker answered step {result.step_id}, but the oldest in flight is {oldest}"
            )
        expected = self._steps.popleft()
        self._clock.note(expected.size, now_seconds - self._oldest_since_seconds)
        self._oldest_since_seconds = now_seconds
        token_ids = result.token_ids
        if len(token_ids) != expected.num_tokens:
            raise EpochEndedError(
                f"the worker answered step {expected.step_id} with {len(token_ids)} tokens, "
                f"but {expected.num_tokens} were asked for"
            )
        if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < self._vocab_size:
            raise EpochEndedError(
                f"the worker answered step {expected.step_id} with a token outside the vocabulary"
            )

    def forgive(self, seconds: float) -> None:
        """Take off time in which this process itself stood still."""
        self._oldest_since_seconds += seconds

    def check_age(self, now_seconds: float) -> None:
        """Hold the oldest step to its time limit.

        Raises:
            EpochEndedError: if it is past it.
        """
        if not self._steps:
            return
        limit_seconds = self._clock.limit_seconds(self._steps[0].size)
        if now_seconds - self._oldest_since_seconds > limit_seconds:
            raise EpochEndedError(f"step {self._steps[0].step_id} took over {limit_seconds:g} s")
