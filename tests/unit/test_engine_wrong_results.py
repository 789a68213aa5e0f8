"""Results that no worker may give: each is refused before the core folds it, whatever it says."""

import random

import numpy as np
import pytest
from stepwire.worker.v1 import worker_service_pb2 as pb

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.convert import result_from_pb, times_from_pb
from scheduler_svc.engine.step_clock import StepClock, StepLimits
from scheduler_svc.engine.steps_in_flight import EpochEndedError, StepsInFlight
from tests.unit.core_steps import make_core, make_request

_VOCAB_SIZE = 100
_STOP_ID = 99


@pytest.mark.parametrize("field", ["busy_time_ns", "idle_time_ns", "held_time_ns"])
def test_a_time_above_a_day_is_refused(field: str) -> None:
    day_ns = 86_400 * 10**9
    result = pb.StepResult()
    setattr(result, field, day_ns)
    times_from_pb(result)
    setattr(result, field, day_ns + 1)
    with pytest.raises(ValueError, match=f"{field} is {day_ns + 1}, but must be at most {day_ns}"):
        times_from_pb(result)


class _LyingWorker:
    """Answers steps of a core, sometimes rightly; all that it says is checked as the engine does."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.core: Scheduler = make_core(num_blocks=self.rng.choice([6, 16]))
        clock = StepClock(StepLimits(least_seconds=10.0, first_seconds=60.0))
        self.steps = StepsInFlight(_VOCAB_SIZE, clock)
        self.sent: list[tuple[int, int, int]] = []
        """Id, sampling rows and iterations of each step in flight."""
        self.num_told = 0
        for name in "abcdef":
            length, stops = self.rng.randrange(1, 20), (_STOP_ID,) * self.rng.randrange(2)
            self.core.add(make_request(name, [1, 2, 3], max_tokens=length, stop_token_ids=stops))

    def run(self) -> str:
        """Run until an answer is refused, or nothing is left to do; tell why it was refused."""
        for _ in range(200):
            self._send()
            if not self.sent:
                return ""
            if fault := self._answer():
                return fault
        raise AssertionError("steps without end")

    def _send(self) -> None:
        while len(self.sent) < 2 or (len(self.sent) == 2 and self.core.is_take_over_due):
            plan = self.core.schedule(num_steps=self.rng.choice([1, 4]))
            if plan is None:
                return
            self.steps.add(plan, 0.0)
            self.sent.append((plan.step_id, int(plan.row_samples.sum()), plan.num_steps))
        if self.rng.random() < 0.05:
            self.core.finish(self.rng.choice("abcdef"), FinishReason.ABORT)

    def _answer(self) -> str:
        message = self._message()
        try:
            result = result_from_pb(message)
            times_from_pb(message)
            self.steps.take_answer(result, 0.0)
        except (ValueError, EpochEndedError) as error:
            return str(error)
        for part in result.parts():
            if fault := self.core.fault_of(part):
                return fault
            self.core.update(part)
        self.num_told = 0 if result.is_last else self.num_told + result.num_iterations
        if result.is_last:
            del self.sent[0]
        return ""

    def _message(self) -> pb.StepResult:
        step_id, num_rows, num_steps = self.sent[0]
        num_iterations = self.rng.randrange(num_steps - self.num_told) + 1
        ids = self.rng.choices([5, 6, _STOP_ID], k=num_rows * num_iterations)
        message = pb.StepResult(step_id=step_id, iteration=self.num_told, num_iterations=num_iterations)
        message.is_last = self.num_told + num_iterations == num_steps
        if ids and num_steps > 1 and self.rng.random() < 0.3:
            ids[self.rng.randrange(len(ids))] = -1
        message.token_ids = np.array(ids, "<i4").tobytes()
        if self.rng.random() < 0.05:
            self._spoil(message)
        return message

    def _spoil(self, message: pb.StepResult) -> None:
        """Change one field, mostly to what cannot be."""
        number = self.rng.choice([0, 1, 2, 2**31, 2**32 - 1])
        match self.rng.randrange(5):
            case 0:
                message.step_id = number
            case 1:
                message.iteration = number
            case 2:
                message.num_iterations = number
            case 3:
                message.is_last = not message.is_last
            case _:
                message.token_ids = self.rng.randbytes(self.rng.randrange(20))


def test_whatever_a_worker_says_is_folded_or_refused_and_breaks_nothing() -> None:
    faults = [_LyingWorker(seed).run() for seed in range(150)]
    assert {"it ends 1 rows that go on", ""} < set(faults)
    assert len(set(faults)) > 10
