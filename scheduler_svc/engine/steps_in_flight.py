"""The steps sent to a worker and not answered: a FIFO that holds each answer to what was sent.

A step's time starts when it becomes the oldest: those behind it wait for it, not for the worker. A
lease's starts again with each of its answers.
Knows nothing about streams, nor what time it is (the caller says so).
"""

from collections import deque
from dataclasses import dataclass

from scheduler_svc.core.plan import Logprobs, StepPlan, StepResult
from scheduler_svc.engine.request_check import MAX_LOGPROBS_PLUS_ONE
from scheduler_svc.engine.step_clock import StepClock, StepSize, size_of
from scheduler_svc.engine.values import AnsweredStep


class EpochEndedError(Exception):
    """The worker epoch ended, or must end; the message says why."""

    def __init__(self, message: str, *, is_orderly: bool = False) -> None:
        """Say why; ``is_orderly`` where the worker left by itself."""
        super().__init__(message)
        self.is_orderly = is_orderly


@dataclass(slots=True, kw_only=True)
class _SentStep:
    step_id: int
    num_tokens: int
    """Sampling rows: as many tokens must come back, of a lease in each iteration."""
    size: StepSize
    num_steps: int
    sent_seconds: float
    num_told: int = 0
    """Iterations answered."""


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
        self._steps.append(
            _SentStep(
                step_id=plan.step_id,
                num_tokens=int(plan.row_samples.sum()),
                size=size_of(plan),
                num_steps=plan.num_steps,
                sent_seconds=now_seconds,
            )
        )

    def take_answer(self, result: StepResult, now_seconds: float) -> AnsweredStep:
        """Match a result with the oldest step, which with its last one is in flight no more.

        Raises:
            EpochEndedError: if it does not answer that step.
        """
        oldest = self._steps[0].step_id if self._steps else 0
        if result.step_id != oldest:
            raise EpochEndedError(
                f"the worker answered step {result.step_id}, but the oldest in flight is {oldest}"
            )
        expected = self._steps[0]
        if result.num_iterations > 0:
            seconds = (now_seconds - self._oldest_since_seconds) / result.num_iterations
            self._clock.note(expected.size, seconds)
        self._oldest_since_seconds = now_seconds
        self._check_iterations(result, expected)
        token_ids, num_tokens = result.token_ids, expected.num_tokens * result.num_iterations
        if len(token_ids) != num_tokens:
            raise EpochEndedError(
                f"the worker answered step {expected.step_id} with {len(token_ids)} tokens, "
                f"but {num_tokens} were asked for"
            )
        # In a lease, -1 stands for a row that had ended.
        lowest = -1 if expected.num_steps > 1 else 0
        if len(token_ids) and not lowest <= token_ids.min() <= token_ids.max() < self._vocab_size:
            raise EpochEndedError(
                f"the worker answered step {expected.step_id} with a token outside the vocabulary"
            )
        if result.logprobs is not None:
            self._check_logprobs(result.logprobs, expected)
        if result.is_last:
            self._steps.popleft()
        return AnsweredStep(
            seconds_since_sent=now_seconds - expected.sent_seconds, is_decode=expected.size.is_decode
        )

    def _check_iterations(self, result: StepResult, expected: _SentStep) -> None:
        """Take the iterations told as the next ones of their step."""
        num_told = expected.num_told + result.num_iterations
        is_complete = num_told == expected.num_steps
        is_right = result.iteration == expected.num_told and num_told <= expected.num_steps
        is_right &= result.is_last if is_complete else expected.num_steps > 1
        is_right &= result.num_iterations > 0 or result.is_last
        if not is_right:
            raise EpochEndedError(
                f"the worker told {result.num_iterations} iterations of step {expected.step_id} from "
                f"{result.iteration} on, but {expected.num_told} of {expected.num_steps} were told before"
            )
        expected.num_told = num_told

    def _check_logprobs(self, logprobs: Logprobs, expected: _SentStep) -> None:
        """Hold the entries to what front ends can be told."""
        if (most := logprobs.counts.max(initial=0)) > MAX_LOGPROBS_PLUS_ONE:
            raise EpochEndedError(
                f"the worker answered step {expected.step_id} with {most} log-probabilities of a token, "
                f"but {MAX_LOGPROBS_PLUS_ONE} are the most"
            )
        token_ids = logprobs.token_ids
        if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < self._vocab_size:
            raise EpochEndedError(
                f"the worker answered step {expected.step_id} with a log-probability of a token outside "
                "the vocabulary"
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
