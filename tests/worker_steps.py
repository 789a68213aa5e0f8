"""Steps and admissions for the worker's tests, with defaults for all that a test does not care about.

Holds no tests and checks nothing.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from worker_svc.batch.step import Admission, LaneSampling, Step
from worker_svc.runner.step_executor import PendingStep, StepExecutor

EMPTY = np.empty(0, np.int32)


def int32(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(list(values), np.int32)


def sampling(**changes: Any) -> LaneSampling:
    fields: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "bias_token_ids": EMPTY,
        "bias_values": np.empty(0, np.float32),
        "stop_token_ids": EMPTY,
        "min_tokens": 0,
        "num_logprobs_plus_one": 0,
    }
    return LaneSampling(**fields | changes)


def admission(lane: int, num_tokens: int = 6, block_ids: Iterable[int] = (1, 2), **changes: Any) -> Admission:
    fields: dict[str, Any] = {
        "lane": lane,
        "incarnation": 7,
        "token_ids": int32(range(num_tokens)),
        "num_prompt_tokens": num_tokens,
        "num_computed_tokens": 0,
        "block_ids": int32(block_ids),
        "max_total_tokens": 12,
        "sampling": sampling(),
    }
    return Admission(**fields | changes)


def step(step_id: int, rows: Iterable[tuple[int, int, bool]] = (), **changes: Any) -> Step:
    """A step whose rows are (lane, number of tokens, samples)."""
    rows = list(rows)
    fields: dict[str, Any] = {
        "step_id": step_id,
        "released_lanes": EMPTY,
        "admissions": (),
        "append_lanes": EMPTY,
        "append_block_ids": EMPTY,
        "row_lanes": int32(row[0] for row in rows),
        "row_num_tokens": int32(row[1] for row in rows),
        "row_samples": np.array([row[2] for row in rows], np.bool_),
    }
    return Step(**fields | changes)


def run_lease(executor: StepExecutor, lease_step: Step) -> list[list[int]]:
    """Run a lease as far ahead as the device takes steps; give each iteration's tokens."""
    lease = executor.begin_lease(lease_step)
    pending: deque[PendingStep] = deque()
    told = []
    while not lease.is_complete and (launched := executor.launch_iteration(lease)) is not None:
        pending.append(launched)
        if len(pending) > executor.num_steps_ahead:
            told.append(pending.popleft().finish().sampled.token_ids.tolist())
    return told + [one.finish().sampled.token_ids.tolist() for one in pending]
