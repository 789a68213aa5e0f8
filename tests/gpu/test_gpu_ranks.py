"""Models that two GPUs share: captured graphs with their communication give the tokens of one GPU.

float32, so that only the order of sums differs.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.rank_process import read_results
from worker_svc.__main__ import GPU_ENVIRONMENT

pytestmark = pytest.mark.gpu

SHAPES = ["qwen3_tiny", "llama_odd_vocabulary"]
LIMIT_SECONDS = 400.0


def test_two_gpus_give_the_tokens_of_one(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    links = [tmp_path / name for name in SHAPES]
    for link in links:
        link.symlink_to(checkpoint_folder(link.name), target_is_directory=True)
    command = [sys.executable, "-m", "tests.rank_process", "cuda", str(tmp_path), *map(str, links)]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS, env=os.environ | GPU_ENVIRONMENT)
    results = read_results(tmp_path, "cuda")
    for name in SHAPES:
        (whole,) = results[name, 1]
        for shared in results[name, 2]:
            assert shared.plain == whole.plain
            assert shared.edited == whole.edited
            assert shared.logprobs == [pytest.approx(values, abs=1e-3) for values in whole.logprobs]


def test_sums_are_exact_however_far_a_rank_is_behind() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.gpu.rank_sums"]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS, env=os.environ | GPU_ENVIRONMENT)
