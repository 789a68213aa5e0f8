"""The GPU runner's steps in Triton's interpreter, without graphs: the ids and logprobs of the plain runner.

float32 on a CPU, so that both give the same tokens. Steps are few: a program takes milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.attention_backend import make_attention_backend
from model.config import read_model_config
from model.load import MODEL_CLASSES
from model.weights import load_weights
from tests.worker_steps import admission, int32, run_lease, sampling, step
from worker_svc.batch import captured_shapes
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import SampledTokens
from worker_svc.runner.kv_cache import allocate_kv_caches
from worker_svc.runner.model_runner import EagerModelRunner
from worker_svc.runner.step_executor import StepExecutor
from worker_svc.runner.token_pool import TokenPool

BLOCK_SIZE, BLOCKS_PER_LANE = 16, 3
LIMITS = TableLimits(
    block_size=BLOCK_SIZE,
    num_blocks=4 * BLOCKS_PER_LANE,
    max_num_seqs=4,
    max_num_batched_tokens=48,
    max_model_len=BLOCK_SIZE * BLOCKS_PER_LANE,
    vocab_size=320,
)
RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(3, 320, length).tolist() for length in (15, 1, 17, 6)]
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02}
FULL: dict[str, Any] = {
    "temperature": 0.7,
    "seed": 11,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.3,
    "bias_token_ids": int32([7, 30]),
    "bias_values": np.array([1.5, -2.0], np.float32),
    "stop_token_ids": int32([5, 9]),
    "min_tokens": 2,
    "num_logprobs_plus_one": 3,
}


def cpu() -> torch.device:
    return torch.device("cpu")


@dataclass
class Epoch:
    """One epoch of hand-made steps."""

    executor: StepExecutor
    step_id: int = 0
    outputs: dict[int, list[int]] = field(default_factory=dict)
    samples: list[SampledTokens] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor.start_epoch()

    def run(self, *rows: tuple[int, int, bool], **more: Any) -> None:
        """Run one step of (lane, number of tokens, samples) and note each lane's token."""
        self.step_id += 1
        sampled = self.executor.launch(step(self.step_id, rows, **more)).finish().sampled
        self.samples.append(sampled)
        lanes = [lane for lane, _, samples in rows if samples]
        for lane, token_id in zip(lanes, sampled.token_ids.tolist(), strict=True):
            self.outputs.setdefault(lane, []).append(token_id)


def admit(lane: int, token_ids: list[int], *, num_blocks: int = BLOCKS_PER_LANE, **params: Any) -> Any:
    """Admit a lane with blocks of its own, the last ones first."""
    first = 1 + lane * BLOCKS_PER_LANE
    return admission(
        lane,
        token_ids=int32(token_ids),
        num_prompt_tokens=len(token_ids),
        block_ids=[*reversed(range(first, first + BLOCKS_PER_LANE))][:num_blocks],
        max_total_tokens=LIMITS.max_model_len,
        sampling=sampling(**params),
    )


class NoGraphs:
    """Takes the place of CudaGraphs: what would be replayed is launched."""

    def __init__(self, launch: Callable[[Any], None], *, device: torch.device) -> None:  # noqa: ARG002
        self._launch = launch
        self._keys: set[Any] = set()

    def __contains__(self, key: Any) -> bool:
        return key in self._keys

    def capture(self, key: Any) -> None:
        self._launch(key)
        self._keys.add(key)

    def replay(self, key: Any) -> None:
        assert key in self._keys
        self._launch(key)


def executors(folder: Path, *, has_graphs: bool = False) -> tuple[StepExecutor, StepExecutor, torch.Tensor]:
    """Return the fused runner's executor and the plain one's, over one model, and the block table."""
    from worker_svc.runner.fused_runner import FusedModelRunner  # noqa: PLC0415
    from worker_svc.runner.step_parts import make_step_parts  # noqa: PLC0415

    config = read_model_config(folder)
    # Not by load_model: it packs weights for CPUs.
    model = MODEL_CLASSES[config.architecture](config, dtype=torch.float32)
    load_weights(model, folder)
    caches = [
        allocate_kv_caches(
            config, LIMITS.num_blocks, block_size=BLOCK_SIZE, dtype=torch.float32, device=cpu()
        )
        for _ in range(2)
    ]
    parts = make_step_parts(model, LIMITS, kv_caches=caches[0], device=cpu())
    fused = FusedModelRunner(parts, batch_sizes=(1, 2, 4), has_graphs=has_graphs)
    pool = TokenPool(LIMITS.max_num_seqs, LIMITS.max_model_len, device=cpu())
    backend = make_attention_backend("torch")
    plain = EagerModelRunner(model, pool, kv_caches=caches[1], backend=backend, device=cpu())
    return StepExecutor(LIMITS, fused), StepExecutor(LIMITS, plain), parts.tables.block_table_LM


def set_ways(monkeypatch: pytest.MonkeyPatch, *ways: str) -> None:
    """Choose which kernels compute qkv, output, gate_up, down and head."""
    from model import fused_decoder  # noqa: PLC0415
    from model.projection import MostRows  # noqa: PLC0415

    most = {
        "few": MostRows(few_rows=32, tiled=32),
        "tiled": MostRows(few_rows=0, tiled=32),
        "cublas": MostRows(few_rows=0, tiled=0),
        "large": MostRows(few_rows=0, tiled=0, cublas=0),
    }
    names = ("qkv", "output", "gate_up", "down", "head")
    limits = {name: most[way] for name, way in zip(names, ways, strict=True)}
    monkeypatch.setattr(fused_decoder, "ROW_LIMITS", fused_decoder.RowLimits(**limits))


def choose_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the last layer compute the rows that sample only, however many they are."""
    from model import fused_decoder  # noqa: PLC0415

    monkeypatch.setattr(fused_decoder, "has_few_chosen", lambda *_: True)


def run_all_kinds(executor: StepExecutor) -> Epoch:
    """Prefills in chunks, decode rows, appended blocks, a reused lane, padding, every flavour."""
    epoch = Epoch(executor)
    first, second, third, fourth = PROMPTS
    epoch.run((2, 15, True), admissions=(admit(2, first, num_blocks=1),))
    admissions = (admit(0, second, num_blocks=2, **SEEDED, seed=2**64 - 3), admit(3, third, num_blocks=1))
    epoch.run((2, 1, True), (0, 1, True), (3, 7, False), admissions=admissions)
    # Lane 2's next token is the first of its second block; lane 0 gets one that it never needs.
    epoch.run((2, 1, True), (0, 1, True), append_lanes=int32([2, 0]), append_block_ids=int32([8, 1]))
    # Lane 3's chunk is a row of one token that samples nothing; its last one needs a second block.
    epoch.run((2, 1, True), (3, 1, False))
    append, last = {"append_lanes": int32([3]), "append_block_ids": int32([11])}, (admit(1, fourth, **FULL),)
    epoch.run((3, 9, True), (2, 1, True), (1, 6, True), (0, 1, True), admissions=last, **append)
    for lanes in ((3, 2), (2, 0, 3), (0, 1, 2)):
        epoch.run(*((lane, 1, True) for lane in lanes))
    epoch.run(released_lanes=int32([2, 0]))
    epoch.run((2, 6, True), (1, 1, True), admissions=(admit(2, fourth, **SEEDED, seed=5),))
    epoch.run((1, 1, True), (2, 1, True))
    return epoch


def run_short(executor: StepExecutor) -> Epoch:
    """One prefill and two decode steps."""
    epoch = Epoch(executor)
    epoch.run((1, 6, True), admissions=(admit(1, PROMPTS[3]),))
    epoch.run((1, 1, True))
    epoch.run((1, 1, True), (0, 1, True), admissions=(admit(0, PROMPTS[1]),))
    return epoch


def test_steps_of_all_kinds_are_those_of_the_plain_runner(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_ways(monkeypatch, *["cublas"] * 5)
    *both, block_table_LM = executors(checkpoint_folder("qwen3_gqa3"))
    fused, plain = [run_all_kinds(executor) for executor in both]
    assert block_table_LM.tolist() == [[3, 2, 1, 0], [6, 5, 4, 0], [9, 8, 7, 0], [12, 11, 0, 0]]
    assert fused.outputs == plain.outputs
    assert len({token for tokens in plain.outputs.values() for token in tokens}) > 8
    for ours, theirs in zip(fused.samples, plain.samples, strict=True):
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        if ours.logprobs is not None and theirs.logprobs is not None:
            assert ours.logprobs.counts.tolist() == theirs.logprobs.counts.tolist()
            assert ours.logprobs.token_ids.tolist() == theirs.logprobs.token_ids.tolist()
            np.testing.assert_allclose(ours.logprobs.values, theirs.logprobs.values, rtol=1e-4, atol=1e-4)


def run_padded(executor: StepExecutor) -> Epoch:
    """Steps of 15, 7, 20 and 14 tokens, some with decode rows; in the last a prompt goes on by another."""
    epoch = Epoch(executor)
    epoch.run((2, 15, True), admissions=(admit(2, PROMPTS[0]),))
    epoch.run((1, 6, True), (2, 1, True), admissions=(admit(1, PROMPTS[3]),))
    admissions = (admit(0, PROMPTS[2] + PROMPTS[3]), admit(3, PROMPTS[1]))
    epoch.run((0, 17, False), (1, 1, True), (3, 1, True), (2, 1, True), admissions=admissions)
    last = {"released_lanes": int32([3]), "admissions": (admit(3, PROMPTS[3]),)}
    epoch.run((2, 1, True), (0, 6, True), (3, 6, True), (1, 1, True), **last)
    return epoch


@pytest.mark.parametrize("are_large", [False, True])
def test_captured_steps_read_what_is_uploaded_before_each_replay(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, are_large: bool
) -> None:
    """Steps with prefill rows are padded to 16, 32 or 48 tokens; of large ones not all are captured."""
    from worker_svc.runner import fused_runner, mixed_sampling, mixed_step  # noqa: PLC0415

    for module in (fused_runner, mixed_step, mixed_sampling):
        monkeypatch.setattr(module, "CudaGraphs", NoGraphs)
    set_ways(monkeypatch, *["cublas"] * 5)
    if are_large:
        choose_few(monkeypatch)
        for name, value in (("ALL_ROWS_TOKENS", 0), ("MOST_DECODE_LEN", 16), ("ROW_COUNTS", (1, 2))):
            monkeypatch.setattr(captured_shapes, name, value)
    *both, _ = executors(checkpoint_folder("qwen3_one_layer"), has_graphs=True)
    fused, plain = [run_padded(executor) for executor in both]
    assert fused.outputs == plain.outputs


@pytest.mark.parametrize("ways", [["cublas"] * 5, ["tiled"] * 5, ["few", "cublas", "tiled", "few", "tiled"]])
def test_a_llama_model_has_no_norms_on_queries_and_keys(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, ways: list[str]
) -> None:
    set_ways(monkeypatch, *ways)
    choose_few(monkeypatch)
    *both, _ = executors(checkpoint_folder("llama3_rope_v5_bias"))
    fused, plain = [run_short(executor) for executor in both]
    assert fused.outputs == plain.outputs


@pytest.mark.parametrize("others", [("cublas", "cublas"), ("tiled", "few")])
def test_large_projections_take_what_stands_around_them_along(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, others: tuple[str, str]
) -> None:
    """Their kernels run on Hopper only: here their references do. The last layer has few rows to compute."""
    from kernels import large_projection, large_projection_ref  # noqa: PLC0415
    from model import fused_decoder, projection  # noqa: PLC0415

    set_ways(monkeypatch, "large", others[0], "large", others[1], "cublas")
    choose_few(monkeypatch)
    monkeypatch.setattr(projection, "can_project", lambda _: True)
    monkeypatch.setattr(fused_decoder, "can_rotate", lambda *_: True)
    for name in ("norm_gate_up_silu", "norm_qkv_rotate"):
        monkeypatch.setattr(large_projection, name, getattr(large_projection_ref, f"{name}_ref"))
    *both, _ = executors(checkpoint_folder("qwen3_gqa3"))
    fused, plain = [run_padded(executor) for executor in both]
    assert fused.outputs == plain.outputs


def test_heads_of_decode_rows_are_made_ready_where_they_are_projected(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.tiled_config import ProjectionTile  # noqa: PLC0415
    from model import fused_decoder  # noqa: PLC0415

    asked = []

    def choose(num_rows: int, *, head_dim: int, **_: int) -> ProjectionTile:
        asked.append(num_rows)
        return ProjectionTile(block_rows=16, block_outputs=head_dim, block_inputs=32, is_tma=False)

    monkeypatch.setattr(fused_decoder, "choose_qkv_tile", choose)
    set_ways(monkeypatch, *["tiled"] * 5)
    *both, _ = executors(checkpoint_folder("qwen3_one_layer"))
    fused, plain = [run_short(executor) for executor in both]
    assert fused.outputs == plain.outputs
    assert asked == [1, 2], "the padded sizes of the steps without prefill rows"


def test_a_lease_gives_the_tokens_of_single_steps_until_a_row_stops(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_ways(monkeypatch, *["cublas"] * 5)
    fused, plain, _ = executors(checkpoint_folder("qwen3_one_layer"))
    expected = Epoch(plain)
    expected.run((1, 6, True), (0, 1, True), admissions=(admit(1, PROMPTS[3]), admit(0, PROMPTS[1])))
    for _ in range(4):
        expected.run((1, 1, True), (0, 1, True))
    stop_id, epoch = expected.outputs[1][2], Epoch(fused)
    stopping = admit(1, PROMPTS[3], stop_token_ids=int32([stop_id]))
    epoch.run((1, 6, True), (0, 1, True), admissions=(stopping, admit(0, PROMPTS[1])))
    told = run_lease(fused, step(2, [(1, 4, True), (0, 4, True)], num_steps=4))
    assert [tokens[1] for tokens in told] == expected.outputs[0][1:]
    assert stop_id not in expected.outputs[1][1:2]
    assert [tokens[0] for tokens in told] == [*expected.outputs[1][1:3], -1, -1]
