"""What a loaded worker is: told to every engine, and handed to the server.

Plain values. Knows nothing about how they travel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker_svc.batch.checks import TableLimits
from worker_svc.runner.executor import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What this worker is; the same for every stream."""

    config_hash: str
    tokenizer_hash: str
    limits: TableLimits
    max_steps_in_flight: int
    device: str
    dtype: str
    attention_backend: str
    tp_size: int
    versions: Mapping[str, str]


def _answers() -> None:
    """Stand for a device that cannot be lost without the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWorker:
    """All there is once the weights are loaded."""

    info: WorkerInfo
    executor: Executor
    check_device: Callable[[], object] = _answers
    """Raises if the device can compute no more in this process."""
