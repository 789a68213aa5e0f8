"""What runs a batch on a device, as the rest of the worker sees it.

Launching and waiting are apart so that a device with a queue of its own can be given the next step
before the tokens of the last are on the host. Knows nothing about steps, streams or any device.
"""

from typing import Protocol

from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.step import Admission, SampledTokens
from worker_svc.runner.device_times import DeviceTimes


class LaunchedStep(Protocol):
    """A step that the device has been given."""

    def wait(self) -> SampledTokens:
        """Wait for the tokens and return them, one a sampling row, in the engine's row order."""

    def wait_until_computed(self) -> None:
        """Wait until ``wait`` need not. Callable from any thread, and beside ``wait``."""

    def device_times(self) -> DeviceTimes | None:
        """Tell the step's times on the device, after ``wait``; None where the host's clock tells them."""


class ModelRunner(Protocol):
    """Owns the model, its KV cache and the token pool of one rank. Used by one thread."""

    @property
    def num_steps_ahead(self) -> int:
        """How many steps to launch before waiting for the oldest; 0 where launching computes."""

    def launch(self, batch: InputBatch, admissions: tuple[Admission, ...]) -> LaunchedStep:
        """Put the admitted tokens into the token pool, then compute the batch, in this order.

        Calls take effect on the device in the order they are made. The batch is read before this
        returns, never later.
        """
