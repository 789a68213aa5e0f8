"""A step with prefill rows whose capture fails: the next one of its kind is captured anew."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.worker_steps import admission, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.runner import mixed_sampling, mixed_step
from worker_svc.runner.cell_writer import CellWriter
from worker_svc.runner.device_tables import DeviceTables
from worker_svc.runner.lane_admissions import LaneAdmissions
from worker_svc.runner.packed_upload import PackedUpload
from worker_svc.runner.staging import StagingRing
from worker_svc.runner.step_parts import staging_words

LIMITS = TableLimits(
    block_size=4, num_blocks=8, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=16, vocab_size=32
)


class FailingGraphs:
    """Takes the place of CudaGraphs: the first capture fails, and nothing is ever launched."""

    def __init__(self, launch: Callable[[Any], None], *, device: torch.device) -> None:  # noqa: ARG002
        self._keys: set[Any] = set()
        self._has_failed = False

    def __contains__(self, key: Any) -> bool:
        return key in self._keys

    def capture(self, key: Any) -> None:
        if not self._has_failed:
            self._has_failed = True
            raise MemoryError
        self._keys.add(key)

    def replay(self, key: Any) -> None:
        assert key in self._keys


def parts_on_cpu() -> Any:
    device = torch.device("cpu")
    upload = PackedUpload(StagingRing(2, staging_words(LIMITS), device=device), device)
    writer = CellWriter(upload)

    def no_writes(_: object) -> Iterator[Any]:
        return iter(())

    model = SimpleNamespace(hidden_size=16, num_heads=1, num_kv_heads=1, head_dim=16, intermediate_size=32)
    return SimpleNamespace(
        decoder=SimpleNamespace(config=model),
        logits_RV=torch.zeros(2, 32),
        limits=LIMITS,
        device=device,
        attention=SimpleNamespace(captures_prefill=True),
        kv_caches=((torch.zeros(9, 4, 1, 16),),),
        group=1,
        upload=upload,
        writer=writer,
        tables=DeviceTables(LIMITS, writer, device=device),
        sampler=SimpleNamespace(words_W=torch.zeros(64, dtype=torch.int32), list_rare_writes=no_writes),
    )


def test_a_kind_of_step_is_captured_again_after_it_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mixed_step, mixed_sampling):
        monkeypatch.setattr(module, "CudaGraphs", FailingGraphs)
    parts = parts_on_cpu()
    steps = mixed_step.MixedStep(parts, LaneAdmissions(parts), has_graphs=True)
    table, admissions = SequenceTable(LIMITS), (admission(0),)
    batch = InputBatch(table, table.apply(step(1, [(0, 3, False)], admissions=admissions)))
    with pytest.raises(MemoryError):
        steps.launch(batch, admissions)
    assert steps.launch(batch, admissions) == 0
