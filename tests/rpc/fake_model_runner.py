"""A runner for the worker's tests: the token at a position is lane * 1000 + position.

Knows nothing about gRPC. It can be held, and can be told to fail.
"""

import threading

import numpy as np

from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.step import Admission, Int64Array, SampledTokens


class FakeLaunchedStep:
    """Waits for its runner's gate."""

    def __init__(self, runner: "FakeModelRunner", sampled: SampledTokens) -> None:
        self._runner = runner
        self._sampled = sampled

    def wait(self) -> SampledTokens:
        """Return the tokens once the gate is open."""
        self.wait_until_computed()
        self._runner.num_launched_at_waits.append(self._runner.num_launched)
        return self._sampled

    def wait_until_computed(self) -> None:
        """Wait until the gate is open."""
        self._runner.is_awaited.set()
        assert self._runner.gate.wait(10), "the test has left the gate closed"

    def device_times(self) -> None:
        """Leave it to the host's clock."""


class FakeModelRunner:
    """Counts what it is asked for."""

    def __init__(self, num_steps_ahead: int = 0) -> None:
        self.num_steps_ahead = num_steps_ahead
        self.gate = threading.Event()
        self.gate.set()
        self.is_failing = False
        self.num_launched = 0
        self.num_launched_at_waits: list[int] = []
        self.is_awaited = threading.Event()
        """Set once anybody has waited for a step."""
        self._has_launched = threading.Condition()

    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> FakeLaunchedStep:
        """Sample what position and lane say; fail, if told to, once the gate is open."""
        del admissions
        if self.is_failing:
            assert self.gate.wait(10), "the test has left the gate closed"
            raise RuntimeError("the device is on fire")
        with self._has_launched:
            self.num_launched += 1
            self._has_launched.notify_all()
        rows = batch.sampling
        return FakeLaunchedStep(self, SampledTokens(token_ids=_tokens(rows.lanes, rows.positions)))

    def wait_launched(self, num_launched: int) -> None:
        """Wait until so many steps have been launched."""
        with self._has_launched:
            is_so = self._has_launched.wait_for(lambda: self.num_launched >= num_launched, timeout=5)
        assert is_so, f"{self.num_launched} steps were launched, not {num_launched}"


def _tokens(lanes: Int64Array, positions: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return (lanes * 1000 + positions).astype(np.int32)
