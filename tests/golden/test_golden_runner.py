"""The worker's runner driven by hand-made steps: the ids and log-probabilities of transformers, fp32.

No core and no stream: what a step must give is told here row by row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.step import SampledTokens
from worker_svc.config import WorkerConfig
from worker_svc.runner.executor import Executor
from worker_svc.runner.load import load_worker

SHAPES = ["qwen3_gqa3", "llama3_rope"]
BLOCKS_PER_LANE = 16
BLOCK_SIZE = 4
LANE_TOKENS = BLOCKS_PER_LANE * BLOCK_SIZE
NUM_TOKENS = 24
RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(3, 320, length).tolist() for length in (9, 1, 17, 6)]
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@dataclass
class Model:
    """A checkpoint as the worker runs it, and as transformers does."""

    executor: Executor
    reference: Any
    _greedy: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """The reference's logits of the next token."""
        with torch.no_grad():
            logits: torch.Tensor = self.reference(torch.tensor([token_ids])).logits[0, -1]
        return logits

    def greedy(self, prompt: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
        """The reference's greedy continuation."""
        known = self._greedy.setdefault(tuple(prompt), [])
        while len(known) < num_tokens:
            known.append(int(self.logits(prompt + known).argmax()))
        return known[:num_tokens]


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, checkpoint_folder: Callable[[str], Path]) -> Model:
    folder = checkpoint_folder(request.param)
    config = WorkerConfig(
        model=str(folder),
        block_size=BLOCK_SIZE,
        num_blocks=4 * BLOCKS_PER_LANE,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=LANE_TOKENS,
        torch_threads=1,
    )
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Model(executor=load_worker(config).executor, reference=reference)


@dataclass
class Epoch:
    """One epoch of hand-made steps; each lane has blocks of its own from its admission."""

    executor: Executor
    step_id: int = 0
    outputs: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.executor.start_epoch()

    def run(self, *rows: tuple[int, int, bool], **more: Any) -> SampledTokens:
        """Run one step of (lane, number of tokens, samples) and note each lane's token."""
        self.step_id += 1
        sampled = self.executor.launch(step(self.step_id, rows, **more)).finish().sampled
        lanes = [lane for lane, _, samples in rows if samples]
        for lane, token_id in zip(lanes, sampled.token_ids.tolist(), strict=True):
            self.outputs.setdefault(lane, []).append(token_id)
        return sampled

    def decode(self, *lanes: int, until: int = NUM_TOKENS) -> None:
        """Decode these lanes together until each has so many tokens."""
        while ready := [lane for lane in lanes if len(self.outputs[lane]) < until]:
            self.run(*((lane, 1, True) for lane in ready))


def admit(lane: int, token_ids: list[int], *, num_prompt_tokens: int = 0, **params: Any) -> Any:
    """Admit a lane with its own sixteen blocks, the last ones first."""
    first = 1 + lane * BLOCKS_PER_LANE
    return admission(
        lane,
        token_ids=int32(token_ids),
        num_prompt_tokens=num_prompt_tokens or len(token_ids),
        block_ids=reversed(range(first, first + BLOCKS_PER_LANE)),
        max_total_tokens=LANE_TOKENS,
        sampling=sampling(**params),
    )


def alone(model: Model, prompt: list[int], *, num_tokens: int = NUM_TOKENS, **params: Any) -> list[int]:
    """One request by itself, its prompt in one step."""
    epoch = Epoch(model.executor)
    epoch.run((0, len(prompt), True), admissions=(admit(0, prompt, **params),))
    epoch.decode(0, until=num_tokens)
    return epoch.outputs[0]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_ids_are_those_of_transformers(model: Model, prompt: list[int]) -> None:
    expected = model.greedy(prompt)
    assert len(set(expected)) > NUM_TOKENS // 3, "the checkpoint repeats itself: the test shows nothing"
    assert alone(model, prompt) == expected


def test_prefill_and_decode_mix_in_one_step(model: Model) -> None:
    epoch = Epoch(model.executor)
    first, second, third, fourth = PROMPTS
    epoch.run((2, 9, True), admissions=(admit(2, first),))
    # A decode row, a prompt of one token, and a prompt in chunks of 7, 1 and 9.
    epoch.run((2, 1, True), (0, 1, True), (3, 7, False), admissions=(admit(0, second), admit(3, third)))
    epoch.run((2, 1, True), (3, 1, False), (0, 1, True))
    epoch.run((3, 9, True), (2, 1, True), (1, 6, True), (0, 1, True), admissions=(admit(1, fourth),))
    epoch.decode(0, 1, 2, 3)
    assert epoch.outputs == {
        2: model.greedy(first),
        0: model.greedy(second),
        3: model.greedy(third),
        1: model.greedy(fourth),
    }


def test_a_reused_lane_shows_nothing_of_the_one_before_it(model: Model) -> None:
    epoch = Epoch(model.executor)
    epoch.run((1, 17, True), admissions=(admit(1, PROMPTS[2]),))
    epoch.decode(1, until=5)
    del epoch.outputs[1]
    # The row of the released lane's last step may still be on its way when the lane is given again.
    epoch.run((1, 9, True), released_lanes=int32([1]), admissions=(admit(1, PROMPTS[0]),))
    epoch.decode(1)
    assert epoch.outputs[1] == model.greedy(PROMPTS[0])


@pytest.mark.parametrize("num_before", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
@pytest.mark.parametrize("params", [{}, {**SEEDED, "seed": 3, "presence_penalty": 0.5}])
def test_a_request_admitted_again_goes_on_as_if_nothing_had_been(
    model: Model, num_before: int, params: dict[str, Any]
) -> None:
    prompt = PROMPTS[0]
    expected = alone(model, prompt, **params)
    epoch = Epoch(model.executor)
    epoch.run((0, 9, True), admissions=(admit(0, prompt, **params),))
    epoch.decode(0, until=num_before)
    known = prompt + epoch.outputs[0]
    again = admit(3, known, num_prompt_tokens=len(prompt), **params)
    epoch.outputs[3] = epoch.outputs.pop(0)
    epoch.run((3, len(known), True), released_lanes=int32([0]), admissions=(again,))
    epoch.decode(3)
    assert epoch.outputs[3] == expected


def test_a_prefix_hit_computes_the_rest_only(model: Model) -> None:
    prompt = PROMPTS[2]
    epoch = Epoch(model.executor)
    epoch.run((0, 17, True), admissions=(admit(0, prompt),))
    shared = int32([*reversed(range(13, 17)), *range(33, 40)])  # lane 0's first four blocks, then new ones
    hit = admission(
        2,
        token_ids=int32(prompt),
        num_prompt_tokens=17,
        num_computed_tokens=16,
        block_ids=shared,
        max_total_tokens=44,
    )
    epoch.run((0, 1, True), (2, 1, True), admissions=(hit,))
    epoch.decode(0, 2)
    assert epoch.outputs[0] == epoch.outputs[2] == model.greedy(prompt)


def test_seeded_ids_are_the_same_alone_and_batched(model: Model) -> None:
    expected = [alone(model, prompt, **SEEDED, seed=2**64 - lane - 1) for lane, prompt in enumerate(PROMPTS)]
    epoch = Epoch(model.executor)
    for lane, prompt in enumerate(PROMPTS):
        new = admit(lane, prompt, **SEEDED, seed=2**64 - lane - 1)
        epoch.run((lane, len(prompt), True), admissions=(new,))
    epoch.decode(3, 1, 0, 2)
    assert [epoch.outputs[lane] for lane in range(4)] == expected
    assert expected[0] != alone(model, PROMPTS[0], **SEEDED, seed=1)


def test_penalties_count_prompt_and_output(model: Model) -> None:
    params: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 0.75, "repetition_penalty": 1.25}
    prompt = PROMPTS[0]
    outputs: list[int] = []
    for _ in range(NUM_TOKENS):
        logits = model.logits(prompt + outputs)
        for token_id in set(prompt + outputs):
            logits[token_id] *= 1 / 1.25 if logits[token_id] > 0 else 1.25
        for token_id in set(outputs):
            logits[token_id] -= 1.5 + 0.75 * outputs.count(token_id)
        outputs.append(int(logits.argmax()))
    assert outputs != model.greedy(prompt)
    assert alone(model, prompt, **params) == outputs


def test_a_bias_is_added_to_its_own_row_only(model: Model) -> None:
    epoch = Epoch(model.executor)
    biased = admit(1, PROMPTS[1], bias_token_ids=int32([77]), bias_values=np.array([100.0], np.float32))
    epoch.run((0, 9, True), (1, 1, True), admissions=(admit(0, PROMPTS[0]), biased))
    epoch.decode(0, 1, until=5)
    assert epoch.outputs == {0: model.greedy(PROMPTS[0], 5), 1: [77] * 5}


def test_stop_ids_are_not_sampled_before_min_tokens(model: Model) -> None:
    prompt = PROMPTS[0]
    first = model.greedy(prompt, 1)[0]
    outputs: list[int] = []
    for _ in range(6):
        logits = model.logits(prompt + outputs)
        if len(outputs) < 4:
            logits[first] = -torch.inf
        outputs.append(int(logits.argmax()))
    assert first != outputs[0]
    assert alone(model, prompt, num_tokens=6, stop_token_ids=int32([first]), min_tokens=4) == outputs


def test_logprobs_are_those_of_the_raw_distribution(model: Model) -> None:
    epoch = Epoch(model.executor)
    admissions = (
        admit(0, PROMPTS[0], num_logprobs_plus_one=3, **SEEDED, seed=9),
        admit(1, PROMPTS[1]),
        admit(2, PROMPTS[3], num_logprobs_plus_one=1),
    )
    sampled = epoch.run((2, 6, True), (0, 9, True), (1, 1, True), admissions=admissions)
    assert sampled.logprobs is not None
    assert sampled.logprobs.counts.tolist() == [1, 3, 0]
    of_2, of_0 = (model.logits(PROMPTS[index]).log_softmax(-1) for index in (3, 0))
    likeliest = of_0.topk(2).indices.tolist()
    token_ids = [epoch.outputs[2][0], epoch.outputs[0][0], *likeliest]
    assert sampled.logprobs.token_ids.tolist() == token_ids
    expected = [of_2[token_ids[0]], *of_0[token_ids[1:]]]
    np.testing.assert_allclose(sampled.logprobs.values, expected, rtol=1e-4, atol=1e-5)


def test_a_step_that_samples_nothing_gives_no_tokens(model: Model) -> None:
    epoch = Epoch(model.executor)
    sampled = epoch.run((0, 4, False), admissions=(admit(0, PROMPTS[0], num_logprobs_plus_one=2),))
    assert (sampled.token_ids.tolist(), sampled.logprobs) == ([], None)
    sampled = epoch.run(released_lanes=int32([0]))
    assert sampled.token_ids.tolist() == []
