"""Steps with prompts on a GPU: graphs, padding and neighbours change no token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.gpu_worker import LANE_TOKENS, Epoch, blocks_of, make_worker
from tests.worker_steps import admission, int32, sampling
from worker_svc.batch import captured_shapes

pytestmark = pytest.mark.gpu

RANDOM = np.random.default_rng(11)
PROMPTS = [RANDOM.integers(3, 320, length).tolist() for length in (70, 90, 64, 33, 65, 80, 3, 12)]


def admit(*lanes: int) -> dict[str, Any]:
    """Admit lanes with a prompt each."""
    return {
        "admissions": tuple(
            admission(
                lane,
                token_ids=int32(PROMPTS[lane]),
                num_prompt_tokens=len(PROMPTS[lane]),
                block_ids=int32(blocks_of(lane)),
                max_total_tokens=LANE_TOKENS,
                sampling=sampling(),
            )
            for lane in lanes
        )
    }


def run(executor: Any) -> dict[int, list[int]]:
    """Prompts alone, beside one that goes on, beside decode rows, and beside many of them."""
    epoch = Epoch(executor)
    epoch.run((0, 70, True), (1, 60, False), **admit(0, 1))
    epoch.run((0, 1, True), (1, 30, True), (2, 64, True), (3, 20, False), **admit(2, 3))
    rows = [(lane, 1, True) for lane in range(3)]
    epoch.run(*rows, (3, 13, True), (4, 65, True), (5, 80, True), **admit(4, 5))
    epoch.run(*((lane, 1, True) for lane in range(6)), (6, 3, True), (7, 12, True), **admit(6, 7))
    epoch.decode([*range(8)], 3)
    return epoch.outputs


@pytest.mark.parametrize("shape", ["qwen3_gqa3", "llama3_rope"])
def test_captured_steps_give_the_tokens_of_eager_ones(
    checkpoint_folder: Callable[[str], Path], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: padding chooses other kernels, but changes no token. Of large ones not all are captured."""
    outputs = []
    for has_graphs, all_rows_tokens, row_counts in ((False, 8192, ()), (True, 8192, ()), (True, 16, (2, 4))):
        monkeypatch.setattr(captured_shapes, "ALL_ROWS_TOKENS", all_rows_tokens)
        monkeypatch.setattr(captured_shapes, "ROW_COUNTS", row_counts)
        monkeypatch.setattr(captured_shapes, "MOST_DECODE_LEN", 91)
        executor, _ = make_worker(
            checkpoint_folder(shape), batch_sizes=(4, 8), has_graphs=has_graphs, dtype=torch.float32
        )
        outputs.append(run(executor))
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({token for tokens in outputs[0].values() for token in tokens}) > 8
