"""The fused forward pass against transformers: logits of Qwen3-0.6B's shapes, and real text.

Random weights of the published shapes, in bfloat16; what counts is the error that bfloat16 itself
brings, as transformers has it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.make_qwen3 import make_qwen3
from kernels.attention_backend import make_lane_backend
from kernels.lane_step import LaneStep, PrefillRows
from model.config import read_model_config
from model.load import load_model
from tools.fetch_smollm2 import DEFAULT_FOLDER

pytestmark = pytest.mark.gpu

NUM_PROMPTS, NUM_POSITIONS, BLOCK_SIZE = 8, 64, 16
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
class FusedForward:
    """Our forward pass over rows of equal length, each with blocks of its own."""

    decoder: Any
    caches: Any
    table_BM: torch.Tensor

    @classmethod
    def load(cls, folder: Path, *, num_rows: int, num_blocks: int, dtype: torch.dtype) -> "FusedForward":
        from model.fused_decoder import FusedDecoder  # noqa: PLC0415
        from worker_svc.runner.kv_cache import allocate_kv_caches  # noqa: PLC0415

        config, device = read_model_config(folder), torch.device("cuda", 0)
        model = load_model(folder, config, device=device, dtype=dtype)
        total = num_rows * num_blocks
        caches = allocate_kv_caches(config, total, block_size=BLOCK_SIZE, dtype=dtype, device=device)
        max_tokens = total * BLOCK_SIZE
        decoder = FusedDecoder(model, max_num_tokens=max_tokens, max_position=num_blocks * BLOCK_SIZE)
        table_BM = 1 + torch.randperm(total, device=device, dtype=torch.int32).view(num_rows, num_blocks)
        return cls(decoder=decoder, caches=caches, table_BM=table_BM)

    @torch.inference_mode()
    def prefill(self, ids_BP: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions, (B, P, V) in float32."""
        num_rows, num_positions = ids_BP.shape
        device = ids_BP.device
        positions_T = torch.arange(num_positions, dtype=torch.int32, device=device).repeat(num_rows)
        rows = LaneStep(
            block_table_LM=self.table_BM,
            lanes_B=torch.arange(num_rows, dtype=torch.int32, device=device),
            seq_lens_B=torch.full((num_rows,), num_positions, dtype=torch.int32, device=device),
            num_decode_rows=0,
            prefill=PrefillRows(
                cu_seqlens_q=torch.arange(num_rows + 1, dtype=torch.int32, device=device) * num_positions,
                max_seqlen_q=num_positions,
            ),
        )
        step = self._step(ids_BP, positions_T.view(num_rows, -1), rows)
        hidden_TE: torch.Tensor = self.decoder.forward(step, self.caches)
        logits_TV = hidden_TE.new_empty((len(hidden_TE), self.decoder.config.vocab_size))
        self.decoder.compute_logits(hidden_TE, logits_TV)
        return logits_TV.float().view(num_rows, num_positions, -1)

    @torch.inference_mode()
    def decode(self, ids_B: torch.Tensor, position: int) -> torch.Tensor:
        """Return the logits of one more token a row, (B, V) in float32."""
        num_rows, device = len(ids_B), ids_B.device
        positions_B = torch.full((num_rows,), position, dtype=torch.int32, device=device)
        rows = LaneStep(
            block_table_LM=self.table_BM,
            lanes_B=torch.arange(num_rows, dtype=torch.int32, device=device),
            seq_lens_B=positions_B + 1,
            num_decode_rows=num_rows,
        )
        step = self._step(ids_B[:, None], positions_B[:, None], rows)
        vocab_size = self.decoder.config.vocab_size
        logits_BV = torch.empty((num_rows, vocab_size), dtype=self.caches[0][0].dtype, device=device)
        self.decoder.decode(step, self.caches, out_TV=logits_BV)
        return logits_BV.float()

    def _step(self, ids_BP: torch.Tensor, positions_BP: torch.Tensor, rows: LaneStep) -> Any:
        from model.fused_decoder import FusedStep  # noqa: PLC0415

        backend = make_lane_backend("triton", block_size=BLOCK_SIZE)
        return FusedStep(
            input_ids_T=ids_BP.flatten().int(),
            positions_T=positions_BP.flatten(),
            slot_mapping_T=self._slots(positions_BP).flatten(),
            attention=backend,
            attention_plan=backend.plan_lanes(rows),
        )

    def _slots(self, positions_BP: torch.Tensor) -> torch.Tensor:
        blocks_BP = self.table_BM[: len(positions_BP)].long().gather(1, positions_BP.long() // BLOCK_SIZE)
        return blocks_BP * BLOCK_SIZE + positions_BP.long() % BLOCK_SIZE


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
    generator = torch.Generator().manual_seed(3)
    ids_BP = torch.randint(0, 151936, (NUM_PROMPTS, NUM_POSITIONS), generator=generator).cuda()
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
