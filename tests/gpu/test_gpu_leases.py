"""Leases on a GPU: the tokens of single steps, whatever ends within them, and the device's own times."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.gpu_worker import LANE_TOKENS, Epoch, blocks_of, make_worker
from tests.worker_steps import admission, int32, run_lease, step

pytestmark = pytest.mark.gpu

RANDOM = np.random.default_rng(3)
PROMPTS = [RANDOM.integers(3, 320, length).tolist() for length in RANDOM.integers(1, 40, 9)]
LANES = [4, 0, 7, 2, 8]
NUM_STEPS = 12
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
PAUSE_SECONDS = 0.5


def _prefilled(executor: Any, stop_ids: dict[int, int]) -> Epoch:
    epoch = Epoch(executor)
    for lane in LANES:
        ends: dict[str, Any] = {"stop_token_ids": int32([stop_ids[lane]])} if lane in stop_ids else {}
        epoch.prefill(lane, PROMPTS[lane], seed=lane + 1, **SEEDED, **ends)
    return epoch


# Rows that stop leave the others to a smaller graph, whose sums another order may round otherwise.
@pytest.mark.parametrize(("batch_sizes", "dtype"), [((9,), torch.bfloat16), ((4, 9), torch.float32)])
def test_a_lease_gives_the_tokens_of_single_steps_until_rows_stop(
    checkpoint_folder: Callable[[str], Path], batch_sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    folder = checkpoint_folder("qwen3_gqa3")
    executor, _ = make_worker(folder, batch_sizes=batch_sizes, has_graphs=True, dtype=dtype)
    single = _prefilled(executor, {})
    single.decode(LANES, NUM_STEPS)
    expected = {lane: single.outputs[lane][1:] for lane in LANES}
    stop_ids = {lane: expected[lane][index] for lane, index in ((4, 3), (2, 9))}
    epoch = _prefilled(executor, stop_ids)
    rows = [(lane, NUM_STEPS, True) for lane in LANES]
    told = run_lease(executor, step(epoch.step_id + 1, rows, num_steps=NUM_STEPS))
    assert len(told) == NUM_STEPS
    for row, lane in enumerate(LANES):
        tokens = expected[lane]
        if lane in stop_ids:
            end = tokens.index(stop_ids[lane]) + 1
            tokens = tokens[:end] + [-1] * (NUM_STEPS - end)
        assert [one[row] for one in told] == tokens


def test_the_device_tells_how_long_it_computed_and_waited(checkpoint_folder: Callable[[str], Path]) -> None:
    executor, _ = make_worker(checkpoint_folder("qwen3_gqa3"), batch_sizes=(4, 9), has_graphs=True)
    epoch = _prefilled(executor, {})
    epoch.decode(LANES, 2)
    results = []
    for _ in range(3):
        epoch.step_id += 1
        launched = executor.launch(step(epoch.step_id, [(lane, 1, True) for lane in LANES]))
        results.append(launched.finish())
    # Nothing was launched ahead, so that the device waited for each launch.
    assert all(0 < result.busy_time_ns < result.step_time_ns for result in results)
    assert all(result.idle_time_ns > 0 for result in results[1:])


def test_the_device_is_idle_after_a_step_that_only_releases_a_lane(
    checkpoint_folder: Callable[[str], Path],
) -> None:
    executor, _ = make_worker(checkpoint_folder("qwen3_gqa3"), batch_sizes=(9,), has_graphs=True)
    epoch = _prefilled(executor, {})
    epoch.decode(LANES, 2)
    executor.launch(step(epoch.step_id + 1, [], released_lanes=int32([LANES[-1]]))).finish()
    time.sleep(PAUSE_SECONDS)
    rows = [(lane, 1, True) for lane in LANES[:-1]]
    result = executor.launch(step(epoch.step_id + 2, rows)).finish()
    assert 0 < result.busy_time_ns < 1e9 * PAUSE_SECONDS / 2
    assert result.idle_time_ns > 1e9 * PAUSE_SECONDS / 2


def test_steps_with_prompts_and_without_are_timed_by_one_clock(
    checkpoint_folder: Callable[[str], Path],
) -> None:
    executor, _ = make_worker(checkpoint_folder("qwen3_gqa3"), batch_sizes=(9,), has_graphs=True)
    epoch = _prefilled(executor, {})
    results = []
    for lane, num_first in ((1, 0), (3, 5), (5, 5), (6, 0)):
        epoch.decode(LANES, 2)
        time.sleep(PAUSE_SECONDS)
        *before, result = epoch.prefill(lane, PROMPTS[0] + [7] * 6, num_first=num_first)
        # What a step takes that samples nothing is told with the next.
        assert [(one.busy_time_ns, one.idle_time_ns) for one in before] == [(0, 0)] * (num_first > 0)
        time.sleep(PAUSE_SECONDS)
        results += [result, epoch.run(*((lane, 1, True) for lane in LANES))]
    # What is captured first takes its time.
    for result in results[4:]:
        assert 0 < result.busy_time_ns < 1e9 * PAUSE_SECONDS / 2
        assert 1e9 * PAUSE_SECONDS / 2 < result.idle_time_ns < 2e9 * PAUSE_SECONDS


def test_a_prompt_whose_rest_never_comes_keeps_the_device_from_idling_no_longer(
    checkpoint_folder: Callable[[str], Path],
) -> None:
    executor, _ = make_worker(checkpoint_folder("qwen3_gqa3"), batch_sizes=(9,), has_graphs=True)
    prompt = PROMPTS[0] + [7] * 6
    for _ in range(2):  # what is captured first takes its time
        _prefilled(executor, {}).prefill(1, prompt, num_first=5)
    epoch = Epoch(executor)
    admitted = admission(
        1, token_ids=int32(prompt), num_prompt_tokens=len(prompt), block_ids=int32(blocks_of(1)),
        max_total_tokens=LANE_TOKENS,
    )  # fmt: skip
    epoch.run((1, 5, False), admissions=(admitted,))
    time.sleep(PAUSE_SECONDS)
    (result,) = Epoch(executor).prefill(2, prompt)
    assert 0 < result.busy_time_ns < 1e9 * PAUSE_SECONDS / 2
