"""The GPU worker's runner and executor with kernels that do nothing: what is left is the host's work.

Tables, staging, copies and result rings are the real ones, on any device. With a step time, tokens come
as late as a GPU would bring them that takes so long for a step. Knows nothing about what is measured.
"""

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.padding import captured_batch_sizes
from worker_svc.runner import fused_runner, mixed_sampling
from worker_svc.runner.cell_writer import CellWriter
from worker_svc.runner.device_sampler import DeviceSampler
from worker_svc.runner.device_tables import DeviceTables
from worker_svc.runner.packed_upload import PackedUpload
from worker_svc.runner.results import ResultRing
from worker_svc.runner.staging import StagingRing
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.step_parts import NUM_STAGING_BUFFERS, StepParts, staging_words

_PR_SET_TIMERSLACK = 29


def make_executor(limits: TableLimits, *, device: str = "cpu", step_seconds: float = 0.0) -> StepExecutor:
    """Make an executor whose tokens are all 0."""
    with (
        patch.object(fused_runner, "CudaGraphs", _NoGraphs),
        patch.object(mixed_sampling, "CudaGraphs", _NoGraphs),
    ):
        runner = fused_runner.FusedModelRunner(
            _parts(limits, torch.device(device)),
            batch_sizes=captured_batch_sizes(limits.max_num_seqs),
            has_graphs=True,
        )
    if step_seconds:
        queue = _DeviceQueue(step_seconds)
        runner._results = ResultRing(
            fused_runner.NUM_RESULT_BUFFERS,
            limits.max_num_seqs,
            device=torch.device(device),
            new_event=lambda _: _StepEnd(queue),
        )
    return StepExecutor(limits, runner)


def _parts(limits: TableLimits, device: torch.device) -> StepParts:
    ring = StagingRing(NUM_STAGING_BUFFERS, staging_words(limits), device=device)
    upload = PackedUpload(ring, device)
    writer = CellWriter(upload)
    tables = DeviceTables(limits, writer, device=device)
    no_model: Any = SimpleNamespace(captures_prefill=False)
    return StepParts(
        decoder=no_model,
        kv_caches=(),
        tables=tables,
        sampler=DeviceSampler(limits, tables.token_pool_LP, device=device),
        ring=ring,
        upload=upload,
        writer=writer,
        limits=limits,
        device=device,
        attention=no_model,
        group=1,
        logits_RV=torch.zeros((1, 1), device=device),
        token_ids_R=torch.zeros(limits.max_num_seqs, dtype=torch.int32, device=device),
    )


class _NoGraphs:
    """Takes the place of CudaGraphs."""

    def __init__(self, launch: Any, *, device: torch.device) -> None:
        del launch, device
        self._keys: set[Any] = set()

    def __contains__(self, key: Any) -> bool:
        return key in self._keys

    def capture(self, key: Any) -> None:
        self._keys.add(key)

    def replay(self, key: Any) -> None:
        assert key in self._keys


class _DeviceQueue(threading.local):
    """When the last step that was launched will be done; all launches come from one thread."""

    def __init__(self, step_seconds: float) -> None:
        self.step_ns = round(step_seconds * 1e9)
        self.end_ns = 0
        self._is_set = False

    def end_sleeps_in_time(self) -> None:
        """Have this thread's sleeps end on time: they end 50 us late otherwise."""
        if not self._is_set:
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self._is_set = True


class _StepEnd:
    """The event behind a step."""

    def __init__(self, queue: _DeviceQueue) -> None:
        self._queue = queue
        self._end_ns = 0

    def record(self) -> None:
        self._queue.end_ns = max(time.perf_counter_ns(), self._queue.end_ns) + self._queue.step_ns
        self._end_ns = self._queue.end_ns

    def synchronize(self) -> None:
        left_ns = self._end_ns - time.perf_counter_ns()
        if left_ns > 0:
            self._queue.end_sleeps_in_time()
            time.sleep(left_ns / 1e9)
