"""Decode steps on a GPU: graphs, padding and batch neighbours change no token and no foreign memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.gpu_worker import Epoch, blocks_of, make_worker
from tests.worker_steps import int32
from worker_svc.batch.padding import captured_batch_sizes

pytestmark = pytest.mark.gpu

RANDOM = np.random.default_rng(7)
PROMPTS = [RANDOM.integers(3, 320, length).tolist() for length in RANDOM.integers(1, 40, 37)]
GREEDY: dict[str, Any] = {}
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
FULL: dict[str, Any] = {
    "temperature": 0.7,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.3,
    "bias_token_ids": int32([7, 30]),
    "bias_values": np.array([1.5, -2.0], np.float32),
    "stop_token_ids": int32([5, 9]),
    "min_tokens": 4,
    "num_logprobs_plus_one": 3,
}
KINDS = pytest.mark.parametrize("params", [GREEDY, SEEDED, FULL], ids=["greedy", "seeded", "full"])
NUM_TOKENS = 20


def run_together(executor: Any, lanes: list[int], params: dict[str, Any]) -> dict[int, list[int]]:
    """Prefill each lane in a step of its own, then decode all together."""
    epoch = Epoch(executor)
    for lane in lanes:
        epoch.prefill(lane, PROMPTS[lane], seed=lane + 1, **params)
    epoch.decode(lanes, NUM_TOKENS)
    return epoch.outputs


@KINDS
@pytest.mark.parametrize("shape", ["qwen3_gqa3", "llama3_rope"])
def test_graphs_give_the_tokens_of_eager_steps(
    checkpoint_folder: Callable[[str], Path], shape: str, params: dict[str, Any]
) -> None:
    outputs = []
    for has_graphs in (True, False):
        executor, _ = make_worker(checkpoint_folder(shape), batch_sizes=(4, 8), has_graphs=has_graphs)
        outputs.append(run_together(executor, [0, 3, 1, 6, 2], params))
    assert outputs[0] == outputs[1]
    assert len({token for tokens in outputs[0].values() for token in tokens}) > NUM_TOKENS


@KINDS
def test_tokens_are_the_same_alone_and_batched(
    checkpoint_folder: Callable[[str], Path], params: dict[str, Any]
) -> None:
    executor, _ = make_worker(checkpoint_folder("qwen3_gqa3"), batch_sizes=(16,), has_graphs=True)
    alone = [run_together(executor, [lane], params)[lane] for lane in range(16)]
    for num_rows in (1, 2, 7, 16):
        lanes = [*reversed(range(num_rows))]
        batched = run_together(executor, lanes, params)
        assert [batched[lane] for lane in range(num_rows)] == alone[:num_rows]


@pytest.mark.parametrize("has_graphs", [True, False])
def test_no_batch_size_touches_a_block_that_is_nobodys(
    checkpoint_folder: Callable[[str], Path], has_graphs: bool
) -> None:
    max_num_seqs = 37
    executor, parts = make_worker(
        checkpoint_folder("qwen3_gqa3"),
        batch_sizes=captured_batch_sizes(max_num_seqs),
        has_graphs=has_graphs,
    )
    owned = {block for lane in range(max_num_seqs) for block in blocks_of(lane)}
    canaries = torch.tensor([block for block in range(parts.limits.num_blocks + 1) if block not in owned])
    caches = [cache for layer in parts.kv_caches for cache in layer]
    for cache in caches:
        # NaN: whoever read it would show it.
        cache.fill_(float("nan"))
    before = [bits_of(cache, canaries) for cache in caches]
    epoch = Epoch(executor)
    for lane in range(max_num_seqs):
        params = (GREEDY, SEEDED, FULL)[lane % 3]
        epoch.prefill(lane, PROMPTS[lane], seed=lane, **params)
    for num_rows in range(1, max_num_seqs + 1):
        epoch.decode([*range(max_num_seqs - num_rows, max_num_seqs)])
    assert canaries.tolist()[:2] == [0, 1]
    for cache, bits in zip(caches, before, strict=True):
        assert torch.equal(bits_of(cache, canaries), bits)
    pool_LP = parts.tables.token_pool_LP.cpu()
    for lane, tokens in epoch.outputs.items():
        known = PROMPTS[lane] + tokens
        assert pool_LP[lane, : len(known)].tolist() == known
        assert pool_LP[lane, len(known) :].count_nonzero() == 0


def bits_of(cache_NSKD: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return a copy of these blocks' bits: NaN is not equal to itself."""
    return cache_NSKD.view(torch.int16)[blocks.to(cache_NSKD.device)].clone()
