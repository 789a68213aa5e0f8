"""The steps sent to a worker and not answered: a FIFO that holds each answer to what was sent.

A step's clock starts when it becomes the oldest: those behind it wait for it, not for the worker.
Knows nothing about streams or clocks (the caller says what time it is).
"""

from collections import deque
from dataclasses import dataclass

from scheduler_svc.core.plan import StepPlan, StepResult


class EpochEndedError(Exception):
    """The worker epoch ended, or must end; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentStep:
    step_id: int
    num_tokens: int
    """Sampling rows: as many tokens must come back."""


class StepsInFlight:
    """The steps of one epoch, oldest first."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._steps: deque[_SentStep] = deque()
        self._oldest_since_seconds = 0.0

    def __len__(self) -> int:
        """Tell how many steps are in flight."""
        return len(self._steps)

    def add(self, plan: StepPlan, now_seconds: float) -> None:
        """Note that a step was sent."""
        if not self._steps:
            self._oldest_since_seconds = now_seconds
        self._steps.append(_SentStep(step_id=plan.step_id, num_tokens=int(plan.row_samples.sum())))

    def take_answer(self, result: StepResult, now_seconds: float) -> None:
        """Match a result with the oldest step, which is in flight no more.

        Raises:
            EpochEndedError: if it does not answer that step.
        """
        expected = self._steps.popleft() if self._steps else _SentStep(step_id=0, num_tokens=0)
        self._oldest_since_seconds = now_seconds
        if result.step_id != expected.step_id:
            raise EpochEndedError(
                f"the worker answered step {result.step_id}, but the oldest in flight is {expected.step_id}"
            )
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

    def check_age(self, now_seconds: float, *, limit_seconds: float) -> None:
        """Hold the oldest step to its time limit.

        Raises:
            EpochEndedError: if it is past it.
        """
        if self._steps and now_seconds - self._oldest_since_seconds > limit_seconds:
            raise EpochEndedError(f"step {self._steps[0].step_id} took over {limit_seconds} s")
