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
        assert self._runner.gate.wait(10), "the test has left the gate closed"
        self._runner.num_launched_at_waits.append(self._runner.num_launched)
        return self._sampled


class FakeModelRunner:
    """Counts what it is asked for."""

    def __init__(self, num_steps_ahead: int = 0) -> None:
        self.num_steps_ahead = num_steps_ahead
        self.gate = threading.Event()
        self.gate.set()
        self.is_failing = False
        self.num_launched = 0
        self.num_launched_at_waits: list[int] = []

    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> FakeLaunchedStep:
        """Sample what position and lane say."""
        del admissions
        if self.is_failing:
            raise RuntimeError("the device is on fire")
        self.num_launched += 1
        rows = batch.sampling
        return FakeLaunchedStep(self, SampledTokens(token_ids=_tokens(rows.lanes, rows.positions)))


def _tokens(lanes: Int64Array, positions: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return (lanes * 1000 + positions).astype(np.int32)
