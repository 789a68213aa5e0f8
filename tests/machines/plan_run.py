"""One plan on the naive worker, from its first result to its last.

A step has one result; a lease one for each iteration, and it ends early once a later plan has taken
over. Knows nothing about the scheduler core, nor whether it is right: naive_worker.py asserts.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler_svc.core.plan import StepPlan, StepResult
from tests.machines.naive_worker import NaiveWorker


@dataclass(slots=True, kw_only=True)
class PlanRun:
    """How far a plan is; nothing of it runs before its first result is asked for."""

    worker: NaiveWorker
    plan: StepPlan
    num_told: int = 0
    num_allowed: int = field(init=False)
    """Iterations until the worker hears of a plan that takes over."""
    is_taken_over: bool = False
    _is_applied: bool = False

    def __post_init__(self) -> None:
        self.num_allowed = self.plan.num_steps

    @property
    def is_open(self) -> bool:
        """Whether it is a lease that nothing has taken over."""
        return self.plan.num_steps > 1 and not self.is_taken_over

    def take_over(self, delay: int) -> int:
        """Have a lease end after ``delay`` more iterations; one that took over runs one at least.

        Returns:
            How many are left for those behind it.
        """
        if self.plan.num_steps == 1:
            return delay
        num_more = min(delay, self.num_allowed - self.num_told)
        if not self.is_taken_over:
            self.is_taken_over = True
            self.num_allowed = max(int(self.plan.takes_over), self.num_told + num_more)
        return delay - num_more

    def next_result(self, *, is_end_apart: bool) -> StepResult:
        """Run up to the next result.

        Args:
            is_end_apart: tell an early end with a result of its own, as if it came too late for the
                last iteration's.
        """
        if not self._is_applied:
            self._is_applied = True
            self.worker.apply(self.plan)
        if self.plan.num_steps == 1:
            return StepResult(step_id=self.plan.step_id, token_ids=_int32(self.worker.run_step(self.plan)))
        if self._is_over:
            return self._result([], num_iterations=0, is_last=True)
        token_ids = self.worker.run_iteration(self.plan, self.num_told)
        self.num_told += 1
        is_complete = self.num_told == self.plan.num_steps
        is_last = is_complete or (self._is_over and not is_end_apart)
        return self._result(token_ids, num_iterations=1, is_last=is_last)

    @property
    def _is_over(self) -> bool:
        return self.num_told >= self.num_allowed or not self.worker.has_live_row(self.plan, self.num_told)

    def _result(self, token_ids: list[int], *, num_iterations: int, is_last: bool) -> StepResult:
        return StepResult(
            step_id=self.plan.step_id,
            token_ids=_int32(token_ids),
            iteration=self.num_told - num_iterations,
            num_iterations=num_iterations,
            is_last=is_last,
        )


def _int32(token_ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(token_ids, np.int32)
