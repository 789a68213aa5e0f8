"""The GPU runner of a model that three ranks share, in Triton's interpreter: the tokens of one whole model.

Three query heads, one KV head that each rank holds, a vocabulary that needs padding. float32, and few steps:
the interpreter takes milliseconds a program.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention_backend import make_attention_backend
from model import cut_residual, row_cut
from model.config import read_model_config
from model.load import MODEL_CLASSES
from model.ranks import Ranks
from model.weights import load_weights
from tests.thread_ranks import run_ranks
from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.model_runner import EagerModelRunner
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.token_pool import TokenPool

BLOCK_SIZE = 16
LIMITS = TableLimits(
    block_size=BLOCK_SIZE,
    num_blocks=4,
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_model_len=BLOCK_SIZE,
    vocab_size=320,
)
LIMITED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 5}
DRAWN: dict[str, Any] = {"temperature": 2.0, "seed": 6}


def make_executor(folder: Path, ranks: Ranks | None, dtype: torch.dtype = torch.float32) -> StepExecutor:
    """Return a fused runner's executor for a rank, and a plain one for the whole model."""
    from worker_svc.runner.fused_runner import FusedModelRunner  # noqa: PLC0415
    from worker_svc.runner.step_parts import make_step_parts  # noqa: PLC0415

    config, cpu = read_model_config(folder), torch.device("cpu")
    # Not by load_model: it packs weights for CPUs.
    model = MODEL_CLASSES[config.architecture](config, ranks=ranks, dtype=dtype)
    load_weights(model, folder)
    caches = allocate_kv_caches(
        model.config, LIMITS.num_blocks, block_size=BLOCK_SIZE, dtype=dtype, device=cpu
    )
    if ranks is not None:
        parts = make_step_parts(model, LIMITS, kv_caches=caches, device=cpu)
        return StepExecutor(LIMITS, FusedModelRunner(parts, batch_sizes=(1, 2), has_graphs=False))
    pool, backend = TokenPool(2, BLOCK_SIZE, device=cpu), make_attention_backend("torch")
    return StepExecutor(LIMITS, EagerModelRunner(model, pool, kv_caches=caches, backend=backend, device=cpu))


def run(executor: StepExecutor) -> list[list[int]]:
    """Run a greedy lane, one beside it whose rows have limits, then one that is drawn from everything."""
    executor.start_epoch()
    first, second, third = (
        admission(
            lane,
            token_ids=int32(prompt),
            num_prompt_tokens=len(prompt),
            block_ids=[lane + 1],
            max_total_tokens=BLOCK_SIZE,
            sampling=sampling(**params),
        )
        for lane, prompt, params in ((0, [5, 300, 110, 17, 44], {}), (1, [250, 7], LIMITED), (1, [9], DRAWN))
    )
    steps = (
        step(1, [(0, 5, True)], admissions=(first,)),
        step(2, [(0, 1, True)]),
        step(3, [(0, 1, True), (1, 2, True)], admissions=(second,)),
        step(4, [(0, 1, True), (1, 1, True)]),
        step(5, [(1, 1, True)], released_lanes=int32([1]), admissions=(third,)),
        step(6, [(1, 1, True)]),
    )
    return [executor.launch(one).finish().sampled.token_ids.tolist() for one in steps]


def cut_from(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Have steps be cut from so many rows on; return the sizes of those that were, once they are."""
    sizes: set[int] = set()

    def note(num_rows: int, row_bytes: int, *, num_ranks: int) -> tuple[slice, ...]:
        cut = row_cut.cut_rows(num_rows, row_bytes, num_ranks=num_ranks)
        sizes.update([num_rows] if cut else [])
        return cut

    monkeypatch.setattr(row_cut, "LEAST_ROWS", num_rows)
    monkeypatch.setattr(row_cut, "LEAST_BYTES", 1)
    monkeypatch.setattr(row_cut, "UNIT", 1)
    monkeypatch.setattr(cut_residual, "cut_rows", note)
    return sizes


def test_ranks_give_the_tokens_of_a_whole_model(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from model import fused_decoder  # noqa: PLC0415
    from model.projection import MostRows  # noqa: PLC0415

    # One row, two rows and more of them go through other kernels: down's pass all three ways.
    cublas = MostRows(few_rows=0, tiled=0)
    ways = dict.fromkeys(("qkv", "gate_up", "head"), cublas)
    ways |= {"output": MostRows(few_rows=1, tiled=1), "down": MostRows(few_rows=1, tiled=2)}
    monkeypatch.setattr(fused_decoder, "ROW_LIMITS", fused_decoder.RowLimits(**ways))
    folder = checkpoint_folder("qwen3_one_layer")
    expected = run(make_executor(folder, None))

    def run_rank(rank: Ranks) -> list[list[int]]:
        return run(make_executor(folder, rank))

    assert run_ranks(3, run_rank) == [expected] * 3
    # The first step and the third are cut: two, two and one row, and one each; that of two decodes is not.
    num_rows_cut = cut_from(2, monkeypatch)
    assert run_ranks(3, run_rank) == [expected] * 3
    assert num_rows_cut == {5, 3}
    assert len({token for tokens in expected for token in tokens}) > 3


def test_layers_whose_rows_come_one_rank_after_the_other_give_the_same_tokens(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 each projection takes the rows that are there; the last layer computes chosen ones only."""
    from model import fused_decoder  # noqa: PLC0415
    from model.projection import MostRows  # noqa: PLC0415

    names = ("qkv", "output", "gate_up", "down", "head")
    limits = fused_decoder.RowLimits(**dict.fromkeys(names, MostRows(few_rows=0, tiled=0)))
    monkeypatch.setattr(fused_decoder, "ROW_LIMITS", limits)
    monkeypatch.setattr(fused_decoder, "LEAST_TOKENS", 2)
    folder = checkpoint_folder("qwen3_tiny")

    def run_rank(rank: Ranks) -> list[list[int]]:
        return run(make_executor(folder, rank, torch.bfloat16))

    whole = run_ranks(2, run_rank)
    num_rows_cut = cut_from(2, monkeypatch)
    assert run_ranks(2, run_rank) == whole
    assert num_rows_cut == {5, 3}
    assert len({token for tokens in whole[0] for token in tokens}) > 3
