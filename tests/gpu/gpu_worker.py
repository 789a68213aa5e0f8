"""A fused runner on the GPU, driven by hand-made steps.

Holds no tests. Each lane has blocks of its own, the last ones first; block 0 and the blocks between two
lanes belong to nobody. Triton is imported only when a worker is made.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from model.config import read_model_config
from model.load import load_model
from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import StepResult
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.step_executor import StepExecutor

if TYPE_CHECKING:
    from worker_svc.runner.step_parts import StepParts

BLOCK_SIZE, BLOCKS_PER_LANE = 16, 6
LANE_TOKENS = BLOCK_SIZE * BLOCKS_PER_LANE


def limits_of(max_num_seqs: int, vocab_size: int) -> TableLimits:
    """Limits with a spare block before, between and after the lanes' own."""
    return TableLimits(
        block_size=BLOCK_SIZE,
        num_blocks=1 + max_num_seqs * (BLOCKS_PER_LANE + 1),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=256,
        max_model_len=LANE_TOKENS,
        vocab_size=vocab_size,
    )


def blocks_of(lane: int) -> list[int]:
    """Return a lane's own blocks: block 1 is nobody's, and so is one after each lane's."""
    first = 2 + lane * (BLOCKS_PER_LANE + 1)
    return [*reversed(range(first, first + BLOCKS_PER_LANE))]


def make_worker(
    folder: Path, *, batch_sizes: tuple[int, ...], has_graphs: bool, dtype: torch.dtype = torch.bfloat16
) -> "tuple[StepExecutor, StepParts]":
    """Make an executor for as many lanes as the largest batch, and what it works with."""
    from worker_svc.runner.fused_runner import FusedModelRunner  # noqa: PLC0415
    from worker_svc.runner.step_parts import make_step_parts  # noqa: PLC0415

    config, device = read_model_config(folder), torch.device("cuda", 0)
    limits = limits_of(batch_sizes[-1], config.vocab_size)
    model = load_model(folder, config, device=device, dtype=dtype)
    caches = allocate_kv_caches(config, limits.num_blocks, block_size=BLOCK_SIZE, dtype=dtype, device=device)
    parts = make_step_parts(model, limits, kv_caches=caches, device=device)
    runner = FusedModelRunner(parts, batch_sizes=batch_sizes, has_graphs=has_graphs)
    return StepExecutor(limits, runner), parts


@dataclass
class Epoch:
    """One epoch; two steps are under way where results are not needed at once."""

    executor: StepExecutor
    step_id: int = 0
    outputs: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.executor.start_epoch()

    def run(self, *rows: tuple[int, int, bool], **more: Any) -> StepResult:
        """Run one step of (lane, number of tokens, samples) and note each lane's token."""
        self.step_id += 1
        result = self.executor.launch(step(self.step_id, rows, **more)).finish()
        lanes = [lane for lane, _, samples in rows if samples]
        for lane, token_id in zip(lanes, result.sampled.token_ids.tolist(), strict=True):
            self.outputs.setdefault(lane, []).append(token_id)
        return result

    def prefill(self, lane: int, prompt: list[int], *, num_first: int = 0, **params: Any) -> list[StepResult]:
        """Admit a lane and compute its prompt in a step of its own, after one of its first tokens."""
        admitted = admission(
            lane,
            token_ids=int32(prompt),
            num_prompt_tokens=len(prompt),
            block_ids=int32(blocks_of(lane)),
            max_total_tokens=LANE_TOKENS,
            sampling=sampling(**params),
        )
        rest = (lane, len(prompt) - num_first, True)
        if num_first:
            return [self.run((lane, num_first, False), admissions=(admitted,)), self.run(rest)]
        return [self.run(rest, admissions=(admitted,))]

    def decode(self, lanes: list[int], num_steps: int = 1) -> None:
        """Decode these lanes together, each step launched before the last one's tokens are read."""
        pending = []
        for _ in range(num_steps):
            self.step_id += 1
            pending.append(self.executor.launch(step(self.step_id, [(lane, 1, True) for lane in lanes])))
            if len(pending) > 1:
                self._note(lanes, pending.pop(0).finish().sampled.token_ids.tolist())
        for launched in pending:
            self._note(lanes, launched.finish().sampled.token_ids.tolist())

    def _note(self, lanes: list[int], token_ids: list[int]) -> None:
        for lane, token_id in zip(lanes, token_ids, strict=True):
            self.outputs[lane].append(token_id)
