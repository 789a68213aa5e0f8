"""A decode step whose inputs cannot be written: the next one is staged as if it had not been."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker_svc.batch.padding import TableShape
from worker_svc.runner.decode_step import DecodeStep


def test_steps_are_staged_after_one_that_could_not_be() -> None:
    parts: Any = SimpleNamespace(
        limits=SimpleNamespace(max_num_seqs=2),
        device=torch.device("cpu"),
        tables=SimpleNamespace(shape=TableShape(num_columns=3, spare_cell=6)),
    )
    steps = DecodeStep(parts, told_2=torch.zeros(2, dtype=torch.int64))
    wrong: Any = SimpleNamespace(num_rows=1, appends=SimpleNamespace(block_ids=()), is_decode=False)
    for _ in range(2):
        with pytest.raises(AssertionError, match="only decode rows"):
            steps.stage(2, wrong)
        steps.stage(2, None)
        steps.launched()
