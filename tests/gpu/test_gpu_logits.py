"""The fused forward pass against transformers: logits of Qwen3-0.6B's shapes, and real text.

Random weights of the published shapes, in bfloat16; what counts is the error that bfloat16 itself
brings, as transformers has it.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.make_qwen3 import make_qwen3
from tests.gpu.fused_forward import BLOCK_SIZE, FusedForward
from tests.gpu.rank_logits import NUM_POSITIONS, NUM_PROMPTS, prompts
from tools.fetch_smollm2 import DEFAULT_FOLDER
from worker_svc.__main__ import GPU_ENVIRONMENT

pytestmark = pytest.mark.gpu

LIMIT_SECONDS = 400.0
BLOCKS = NUM_POSITIONS // BLOCK_SIZE
TEXT = (
    "The Baltic Sea is an arm of the Atlantic Ocean that is enclosed by Denmark, Estonia, Finland, Germany, "
    "Latvia, Lithuania, Poland, Russia, Sweden and the North and Central European Plain. It stretches from "
    "53 to 66 degrees north latitude and from 10 to 30 degrees east longitude. It is a marginal sea of the "
    "Atlantic, with limited water exchange between the two water bodies. The Baltic Sea drains through the "
    "Danish straits into the Kattegat by way of the Oresund, Great Belt and Little Belt. It includes the "
    "Gulf of Bothnia, the Bay of Bothnia, the Gulf of Finland, the Gulf of Riga and the Bay of Gdansk."
)


@dataclass(frozen=True)
class Reference:
    """transformers' logits of the same tokens."""

    ids_BP: torch.Tensor
    exact_BPV: torch.Tensor
    """In float32."""
    bfloat16_BPV: torch.Tensor

    def error(self, logits: torch.Tensor, rows: Any = slice(None)) -> float:
        """Return the relative error of logits of these rows and positions."""
        exact = self.exact_BPV[rows]
        return float((logits - exact).norm() / exact.norm())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random checkpoint of Qwen3-0.6B's shapes."""
    path = tmp_path_factory.mktemp("qwen3")
    make_qwen3(path)
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    """Return transformers' logits in float32 and in bfloat16."""
    ids_BP = prompts().cuda()
    logits = [_transformers_logits(folder, ids_BP, dtype) for dtype in (torch.float32, torch.bfloat16)]
    return Reference(ids_BP=ids_BP, exact_BPV=logits[0], bfloat16_BPV=logits[1])


def _transformers_logits(folder: Path, ids_BP: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.to(ids_BP.device)
    with torch.no_grad():
        logits: torch.Tensor = model(ids_BP).logits.float()
    return logits


def test_prefill_is_as_exact_as_transformers(folder: Path, reference: Reference) -> None:
    ours = FusedForward.load(folder, num_rows=NUM_PROMPTS, num_blocks=BLOCKS, dtype=torch.bfloat16)
    error = reference.error(ours.prefill(reference.ids_BP))
    assert error <= 1.2 * reference.error(reference.bfloat16_BPV)


@pytest.mark.parametrize("num_rows", [1, 2, 4, NUM_PROMPTS])
def test_decode_is_as_exact_as_transformers(folder: Path, reference: Reference, num_rows: int) -> None:
    ours = FusedForward.load(folder, num_rows=num_rows, num_blocks=BLOCKS, dtype=torch.bfloat16)
    ids_BP = reference.ids_BP[:num_rows]
    last = NUM_POSITIONS - 1
    ours.prefill(ids_BP[:, :last])
    rows = (slice(num_rows), last)
    error = reference.error(ours.decode(ids_BP[:, last], last), rows)
    assert error <= 1.2 * reference.error(reference.bfloat16_BPV[rows], rows)


def test_two_gpus_are_as_exact_as_transformers(folder: Path, reference: Reference, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    out = tmp_path / "logits.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.gpu.rank_logits", str(folder), str(out)]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS, env=os.environ | GPU_ENVIRONMENT)
    error = reference.error(torch.load(out).cuda())
    assert error <= 1.2 * reference.error(reference.bfloat16_BPV)


def test_log_likelihoods_of_real_text_are_those_of_transformers() -> None:
    if not (DEFAULT_FOLDER / "config.json").exists():
        pytest.skip(f"{DEFAULT_FOLDER} is not there: `make demo` fetches it")
    from transformers import AutoTokenizer  # noqa: PLC0415

    ids_1P = torch.tensor([AutoTokenizer.from_pretrained(DEFAULT_FOLDER)(TEXT)["input_ids"]]).cuda()
    num_blocks = -(-ids_1P.shape[1] // BLOCK_SIZE)
    ours = FusedForward.load(DEFAULT_FOLDER, num_rows=1, num_blocks=num_blocks, dtype=torch.bfloat16)
    exact_1PV = _transformers_logits(DEFAULT_FOLDER, ids_1P, torch.float32)
    assert abs(_nats_a_token(ours.prefill(ids_1P), ids_1P) - _nats_a_token(exact_1PV, ids_1P)) < 0.02


def _nats_a_token(logits_BPV: torch.Tensor, ids_BP: torch.Tensor) -> float:
    logprobs = logits_BPV[:, :-1].log_softmax(-1).gather(2, ids_BP[:, 1:, None])
    return -float(logprobs.mean())
