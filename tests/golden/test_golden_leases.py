"""The same token ids with leases as step by step, whatever ends a lease or a request within it.

Core, step stream and a real worker's executor in one process (tests/core_with_worker.py), fp32, a tiny
random checkpoint. What is right are a request's ids alone, one step at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.types import FinishReason, Request, SamplingParams
from tests.core_with_worker import CoreWithWorker, core_limits
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker
from worker_svc.runner.worker_info import LoadedWorker

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=2**63 + 5)
LEASES = [(1, 3), (2, 1), (2, 3), (2, 8), (3, 8), (4, 3)]
"""Steps in flight, iterations of a lease."""

Run = Callable[..., CoreWithWorker]


def _prompt(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(3, 320, 5 + 7 * number % 40, dtype=np.int32)


def _request(number: int, sampling: SamplingParams, max_tokens: int = NUM_TOKENS) -> Request:
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=_prompt(number),
        sampling=sampling,
        max_tokens=max_tokens,
        handle=number,
    )


def _requests(numbers: range, **changes: Any) -> list[Request]:
    """Every other one greedy, each of another length."""
    return [
        _request(number, replace(GREEDY if number % 2 else SEEDED, **changes), NUM_TOKENS - number)
        for number in numbers
    ]


@pytest.fixture(scope="module")
def worker_of(checkpoint_folder: Callable[[str], Path]) -> Callable[[int], LoadedWorker]:
    """Return a function that loads a worker with so many blocks, once."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    loaded: dict[int, LoadedWorker] = {}

    def load(num_blocks: int) -> LoadedWorker:
        if num_blocks not in loaded:
            config = WorkerConfig(
                model=str(checkpoint_folder("qwen3_gqa3")),
                torch_threads=1,
                block_size=4,
                num_blocks=num_blocks,
                max_num_seqs=8,
                max_num_batched_tokens=64,
                max_model_len=72,
            )
            loaded[num_blocks] = load_worker(config)
        return loaded[num_blocks]

    return load


@pytest.fixture(scope="module")
def make_loop(worker_of: Callable[[int], LoadedWorker]) -> Run:
    """Return a function that joins a new core with a worker."""

    def make(depth: int = 1, num_steps: int = 1, *, num_blocks: int = 160, **options: Any) -> CoreWithWorker:
        worker = worker_of(num_blocks)
        return CoreWithWorker(
            worker.executor, core_limits(worker.info.limits), depth=depth, num_steps=num_steps, **options
        )

    return make


@pytest.fixture(scope="module")
def alone(make_loop: Run) -> Callable[[Request], list[int]]:
    """Return a function: the ids of a request alone, step by step, made once."""
    made: dict[tuple[int, SamplingParams, int | None], list[int]] = {}

    def ids(request: Request) -> list[int]:
        key = (request.handle, request.sampling, request.max_tokens)
        if key not in made:
            fresh = _request(request.handle, request.sampling, request.max_tokens or 0)
            made[key] = make_loop().run([fresh])[0]
        return made[key]

    return ids


@dataclass(slots=True)
class _AbortOnce:
    """Aborts a request once it has some tokens."""

    handle: int
    num_tokens: int
    aborted: list[int] = field(default_factory=list)
    """How many tokens it had."""

    def __call__(self, loop: CoreWithWorker) -> None:
        if not self.aborted and len(loop.tokens[self.handle]) >= self.num_tokens:
            self.aborted.append(loop.abort(f"r{self.handle}").num_output_tokens)


@pytest.mark.parametrize(("depth", "num_steps"), LEASES)
@pytest.mark.parametrize("joins_results", [False, True])
def test_length_limits_within_a_lease(
    depth: int, num_steps: int, joins_results: bool, make_loop: Run, alone: Callable[[Request], list[int]]
) -> None:
    loop = make_loop(depth, num_steps, joins_results=joins_results)
    requests = _requests(range(1, 7))
    assert loop.run(requests) == [alone(request) for request in requests]
    assert (loop.num_leases > 0) == (num_steps > 1)
    assert {finished.reason for finished in loop.finished.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize(("depth", "num_steps"), LEASES)
@pytest.mark.parametrize("min_tokens", [0, 15])
def test_stop_ids_within_a_lease(
    depth: int, num_steps: int, min_tokens: int, make_loop: Run, alone: Callable[[Request], list[int]]
) -> None:
    requests = _requests(range(1, 7))
    # Each request's own 6th and 12th ids, and as many more as there are few.
    for index, request in enumerate(requests):
        ids = alone(request)
        others = sorted(set(range(3 * index + NUM_TOKENS)) - set(ids))
        stop_token_ids = (*others[: 3 * index], ids[11], ids[5])
        sampling = replace(request.sampling, stop_token_ids=stop_token_ids, min_tokens=min_tokens)
        requests[index] = _request(request.handle, sampling, NUM_TOKENS)
    loop = make_loop(depth, num_steps)
    found = loop.run(requests)
    assert found == [alone(request) for request in requests]
    assert {finished.reason for finished in loop.finished.values()} >= {FinishReason.STOP_TOKEN}
    assert all(len(ids) >= min_tokens for ids in found)


@pytest.mark.parametrize(("depth", "num_steps"), LEASES)
def test_requests_that_arrive_during_leases_take_over(
    depth: int, num_steps: int, make_loop: Run, alone: Callable[[Request], list[int]]
) -> None:
    loop = make_loop(depth, num_steps)
    first, late = _requests(range(1, 4)), _requests(range(4, 8))
    assert loop.run(first, late=late) == [alone(request) for request in (*first, *late)]
    assert (loop.num_leases_ended_early > 0) == (num_steps > 1)


@pytest.mark.parametrize(("depth", "num_steps"), LEASES)
def test_an_abort_during_a_lease_changes_nothing_for_the_others(
    depth: int, num_steps: int, make_loop: Run, alone: Callable[[Request], list[int]]
) -> None:
    abort = _AbortOnce(2, 7)
    loop = make_loop(depth, num_steps, after_result=abort)
    requests = _requests(range(1, 5))
    found = loop.run(requests)
    assert abort.aborted == [len(found[1])]
    assert 7 <= len(found[1]) < NUM_TOKENS - 2
    expected = [alone(request) for request in requests]
    assert found[1] == expected[1][: len(found[1])]
    del found[1], expected[1]
    assert found == expected


@pytest.mark.parametrize(("depth", "num_steps"), LEASES)
def test_leases_with_too_few_blocks(
    depth: int, num_steps: int, make_loop: Run, alone: Callable[[Request], list[int]]
) -> None:
    loop = make_loop(depth, num_steps, num_blocks=24)
    requests, late = _requests(range(1, 6)), _requests(range(6, 9))
    assert loop.run(requests, late=late) == [alone(request) for request in (*requests, *late)]
    assert loop.core.state().num_preemptions_total > 0


def test_logprobs_of_rows_that_end_within_a_lease(
    make_loop: Run, alone: Callable[[Request], list[int]]
) -> None:
    loop = make_loop(2, 8, joins_results=True)
    requests = _requests(range(1, 5), num_logprobs_plus_one=3)
    assert loop.run(requests) == [alone(request) for request in requests]


@pytest.fixture(autouse=True, scope="module")
def _threads_as_before() -> Iterator[None]:
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
