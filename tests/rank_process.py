"""What ranks of shared models compute: ``python -m tests.rank_process DEVICE OUT FOLDER ...``.

Each model is run whole and by several ranks: on the CPU, over gloo, by two and four, on GPUs by two. Rank R
leaves all its results in OUT/R.pt, which read_results reads. The same processes serve all cases, forked from
one that has imported torch, and share the whole models between them; once one fails, all end. Holds no tests
and checks nothing.
"""

import itertools
import multiprocessing
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from kernels.attention_backend import make_attention_backend
from model.config import read_model_config
from model.forward_context import ForwardContext
from model.load import load_model
from tests.ending_ranks import end_with_parent, wait_for_all
from tests.rank_progress import RankProgress
from tests.worker_steps import admission, int32, sampling, step
from worker_svc.config import WorkerConfig
from worker_svc.runner.executor import Executor
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.load import load_worker
from worker_svc.tp.group import TpGroup
from worker_svc.tp.model_ranks import make_ranks

SIZES = {"cpu": (4, 2, 1), "cuda": (1, 2)}
NUM_PROMPT_TOKENS = 20
NUM_STEPS = 8
BLOCK_SIZE = 16
LANES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "seed": 2**64 - 5},
    {"temperature": 1.5, "top_p": 0.7, "seed": 11},
)
EDITED_LANE: dict[str, Any] = {
    "temperature": 0.7,
    "seed": 11,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.3,
    "bias_token_ids": int32([7, 300]),
    "bias_values": np.array([1.5, 2.0], np.float32),
    "stop_token_ids": int32([5, 9]),
    "min_tokens": 2,
    "num_logprobs_plus_one": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank has of one model."""

    logits_TV: torch.Tensor
    """Of a prompt, gathered from all ranks; none where a GPU's kernels compute."""
    plain: list[list[int]]
    """Tokens of a step whose rows sample in every way that edits no logits."""
    edited: list[list[int]]
    logprobs: list[list[float]]
    kv_cache_shape: tuple[int, ...]


def read_results(out: Path, device: str) -> dict[tuple[str, int], list[RankResult]]:
    """Return all results by the model's name and the number of ranks: a list by rank."""
    results: dict[tuple[str, int], list[RankResult]] = {}
    for rank in range(max(SIZES[device])):
        for case, values in torch.load(out / f"{rank}.pt").items():
            results.setdefault(case, []).append(RankResult(**values))
    return results


def compute(folder: Path, group: TpGroup, progress: RankProgress) -> RankResult:
    """Compute one model's results as one of these ranks."""
    device, _, _ = group.device.partition(":")
    logits_TV, kv_cache_shape = torch.empty(0), tuple[int, ...]()
    if device == "cpu":
        logits_TV, kv_cache_shape = compute_logits(folder, group)
    config = WorkerConfig(
        model=str(folder),
        device=device,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=8,
        max_num_seqs=4,
        max_num_batched_tokens=128,
    )
    # Captured are the steps that come, not all sizes: compiling those would take most of the time.
    executor = load_worker(config, group, captures_at_start=False).executor
    progress.tell("loaded")
    plain = run_lanes(executor, LANES)
    progress.tell("sampled in every way that edits no logits")
    edited = run_lanes(executor, (LANES[1], EDITED_LANE))
    progress.tell("edited logits")
    return RankResult(
        logits_TV=logits_TV,
        plain=[tokens for tokens, _ in plain],
        edited=[tokens for tokens, _ in edited],
        logprobs=[values for _, values in edited],
        kv_cache_shape=kv_cache_shape,
    )


def compute_logits(folder: Path, group: TpGroup) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the logits of every token of a prompt, and the shape of a layer's keys."""
    whole = read_model_config(folder)
    model = load_model(folder, whole, device="cpu", dtype=torch.float32, ranks=make_ranks(group))
    caches = allocate_kv_caches(
        model.config, 2, block_size=BLOCK_SIZE, dtype=torch.float32, device=torch.device("cpu")
    )
    positions_T = torch.arange(NUM_PROMPT_TOKENS)
    context = ForwardContext(
        slot_mapping_T=positions_T + BLOCK_SIZE,
        cu_seqlens_q=torch.tensor([0, NUM_PROMPT_TOKENS], dtype=torch.int32),
        seq_lens_B=torch.tensor([NUM_PROMPT_TOKENS], dtype=torch.int32),
        block_table_BM=torch.tensor([[1, 2]], dtype=torch.int32),
        query_lens=(NUM_PROMPT_TOKENS,),
        context_lens=(NUM_PROMPT_TOKENS,),
        num_decode_rows=0,
        kv_caches=caches,
        backend=make_attention_backend("torch"),
    )
    # From one end to the other: every rank's part of the embedding table is read.
    input_ids_T = torch.linspace(1, whole.vocab_size - 1, NUM_PROMPT_TOKENS).long()
    with torch.inference_mode():
        logits_TV = model.compute_logits(model(input_ids_T, positions_T, context))
        if model.shared_vocabulary is not None:
            logits_TV = model.shared_vocabulary.gather(logits_TV)
    return logits_TV.clone(), tuple(caches[0][0].shape)


def run_lanes(executor: Executor, lanes: tuple[dict[str, Any], ...]) -> list[tuple[list[int], list[float]]]:
    """Run a prompt on each lane, then decode; return each step's tokens and log-probabilities."""
    executor.start_epoch()
    prompts = [list(range(3 + 17 * lane, 10 + 19 * lane)) for lane in range(len(lanes))]
    admissions = tuple(
        admission(
            lane,
            token_ids=int32(prompt),
            num_prompt_tokens=len(prompt),
            block_ids=[1 + 2 * lane, 2 + 2 * lane],
            max_total_tokens=2 * BLOCK_SIZE,
            sampling=sampling(**params),
        )
        for lane, (params, prompt) in enumerate(zip(lanes, prompts, strict=True))
    )
    prefill = step(
        1, [(lane, len(prompt), True) for lane, prompt in enumerate(prompts)], admissions=admissions
    )
    decodes = (
        step(number, [(lane, 1, True) for lane in range(len(lanes))]) for number in range(2, NUM_STEPS)
    )
    results = []
    for one in itertools.chain((prefill,), decodes):
        sampled = executor.finish(executor.launch(one)).sampled
        values = [] if sampled.logprobs is None else sampled.logprobs.values.tolist()
        results.append((sampled.token_ids.tolist(), values))
    return results


def run_rank(rank: int, device: str, *, out: Path, folders: list[Path]) -> None:
    """Take part in every group that has this rank; alone, run its share of the models."""
    end_with_parent()
    progress, num_ranks = RankProgress(rank), max(SIZES[device])
    torch.set_num_threads(1)
    own_device = f"cuda:{rank}" if device == "cuda" else device
    if device == "cuda":
        torch.cuda.set_device(own_device)
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for size in SIZES[device]:
        if size > 1 and rank >= size:
            continue
        if size > 1:
            backend, meeting = "nccl" if device == "cuda" else "gloo", f"file://{out}/meeting_{size}"
            progress.tell(f"meets {size} ranks")
            distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=size)
        place = rank % size
        group = TpGroup(rank=place, size=size, device=own_device, local_rank=place, local_size=size)
        for folder in folders if size > 1 else folders[rank::num_ranks]:
            progress.tell(f"{folder.name}, {size} ranks")
            results[folder.name, size] = asdict(compute(folder, group, progress))
        # NCCL would wait for the graphs that use it. Theirs is the last size: both end with the process.
        if size > 1 and device == "cpu":
            distributed.destroy_process_group()
    torch.save(results, out / f"{rank}.pt")
    progress.tell("ends")


def main() -> None:
    device, (out, *folders) = sys.argv[1], map(Path, sys.argv[2:])
    # Nothing here has touched a GPU, which no fork could use then.
    fork, more = multiprocessing.get_context("fork"), {"out": out, "folders": folders}
    ranks = [
        fork.Process(target=run_rank, args=(rank, device), kwargs=more) for rank in range(max(SIZES[device]))
    ]
    for process in ranks:
        process.start()
    raise SystemExit(wait_for_all(ranks))


if __name__ == "__main__":
    main()
