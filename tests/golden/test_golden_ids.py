"""The same token ids however a request is run: against transformers, and against itself.

Core, step stream and a real worker's executor in one process (tests/core_with_worker.py), fp32, tiny
random checkpoints. Greedy ids must equal transformers' own; seeded ids must equal the request's alone.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import Request, SamplingParams
from tests.core_with_worker import CoreWithWorker, core_limits
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker
from worker_svc.runner.worker_info import LoadedWorker

SHAPES = ["qwen3_tiny", "qwen3_gqa3", "qwen3_untied_sharded", "llama3_rope", "llama_tied"]
NUM_TOKENS = 64
BLOCK_SIZE = 16
PROMPT = np.random.default_rng(7).integers(3, 320, 37, dtype=np.int32)
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=2**63 + 5)
SAMPLINGS = [pytest.param(GREEDY, id="greedy"), pytest.param(SEEDED, id="seeded")]

Expected = Callable[[str, SamplingParams], list[int]]
Run = Callable[..., CoreWithWorker]


def _request(number: int, prompt: np.ndarray = PROMPT, sampling: SamplingParams = GREEDY) -> Request:
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        sampling=sampling,
        max_tokens=NUM_TOKENS,
        handle=number,
    )


def _others(number: int) -> list[Request]:
    """Requests to share the batch with: different prompts, lengths and ways to sample."""
    rng = np.random.default_rng(11)
    return [
        _request(
            100 + i,
            rng.integers(3, 320, int(rng.integers(1, 60)), dtype=np.int32),
            GREEDY if i % 2 else SamplingParams(temperature=1.0, seed=i),
        )
        for i in range(number)
    ]


@pytest.fixture(scope="module")
def make_loop(checkpoint_folder: Callable[[str], Path]) -> Run:
    """Return a function that joins a new core with a worker for a shape and limits, loaded once."""
    workers: dict[tuple[str, tuple[Any, ...]], LoadedWorker] = {}

    def make(
        shape: str,
        *,
        depth: int = 2,
        before_schedule: Callable[[Scheduler], None] = lambda _: None,
        **limits: Any,
    ) -> CoreWithWorker:
        sizes: dict[str, Any] = {
            "block_size": BLOCK_SIZE,
            "num_blocks": 160,
            "max_num_seqs": 20,
            "max_num_batched_tokens": 256,
        }
        config = WorkerConfig(model=str(checkpoint_folder(shape)), torch_threads=1, **(sizes | limits))
        key = (shape, tuple(sorted(limits.items())))
        worker = workers[key] = workers.get(key) or load_worker(config)
        return CoreWithWorker(
            executor=worker.executor,
            limits=core_limits(worker.info.limits),
            depth=depth,
            before_schedule=before_schedule,
        )

    return make


@pytest.fixture(scope="module")
def expected(checkpoint_folder: Callable[[str], Path], make_loop: Run) -> Expected:
    """Return a function: the right ids of PROMPT, made once."""
    made: dict[tuple[str, SamplingParams], list[int]] = {}

    def ids(shape: str, sampling: SamplingParams) -> list[int]:
        key = (shape, sampling)
        if key not in made:
            if sampling is GREEDY:
                made[key] = _ids_of_transformers(checkpoint_folder(shape))
            else:
                made[key] = make_loop(shape, depth=1).run([_request(1, sampling=sampling)])[0]
        return made[key]

    return ids


def _ids_of_transformers(folder: Path) -> list[int]:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(PROMPT.astype(np.int64))[None]
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=NUM_TOKENS,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
    )
    ids_out: list[int] = output[0, len(PROMPT) :].tolist()
    return ids_out


class _PreemptAt:
    """Preempts request r1 when it has just reached each of some lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.left = list(lengths)

    def __call__(self, core: Scheduler) -> None:
        lanes = core._state.lanes
        for lane in lanes.admission_order.tolist():
            if lanes.requests[lane].request_id == "r1" and int(lanes.num_folded[lane]) in self.left:
                self.left.remove(int(lanes.num_folded[lane]))
                core._state.preempt(lane)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
class TestEveryShape:
    def test_the_expected_ids_vary(self, shape: str, sampling: SamplingParams, expected: Expected) -> None:
        assert len(set(expected(shape, sampling))) >= 20, "repeated ids would hide mistakes"

    def test_alone(self, shape: str, sampling: SamplingParams, expected: Expected, make_loop: Run) -> None:
        assert make_loop(shape).run([_request(1, sampling=sampling)]) == [expected(shape, sampling)]


@pytest.mark.parametrize("shape", SHAPES)
class TestEveryShapeInBatches:
    def test_with_16_others(self, shape: str, expected: Expected, make_loop: Run) -> None:
        others = _others(16)
        ours = [_request(1, sampling=GREEDY), _request(2, sampling=SEEDED)]
        ids = make_loop(shape).run([*others[:8], *ours, *others[8:]])
        assert ids[8:10] == [expected(shape, GREEDY), expected(shape, SEEDED)]

    def test_with_preemptions_for_want_of_blocks(
        self, shape: str, expected: Expected, make_loop: Run
    ) -> None:
        loop = make_loop(shape, num_blocks=12, depth=3, max_model_len=128)
        samplings = [GREEDY, SEEDED, GREEDY, SEEDED]
        ids = loop.run([_request(number, sampling=sampling) for number, sampling in enumerate(samplings)])
        assert loop.core.state().num_preemptions_total > 0
        assert ids == [expected(shape, sampling) for sampling in samplings]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", ["qwen3_gqa3", "llama3_rope"])
class TestEveryWay:
    @pytest.mark.parametrize("chunk", [1, 3, 7])
    def test_in_chunks(
        self, shape: str, sampling: SamplingParams, chunk: int, expected: Expected, make_loop: Run
    ) -> None:
        loop = make_loop(shape, max_num_seqs=1, max_num_batched_tokens=chunk)
        assert loop.run([_request(1, sampling=sampling)]) == [expected(shape, sampling)]

    @pytest.mark.parametrize("chunk", [2, 5])
    def test_in_chunks_beside_a_decoding_one(
        self, shape: str, sampling: SamplingParams, chunk: int, expected: Expected, make_loop: Run
    ) -> None:
        loop = make_loop(shape, max_num_seqs=2, max_num_batched_tokens=chunk)
        ids = loop.run([_others(1)[0], _request(1, sampling=sampling)])
        assert ids[1] == expected(shape, sampling)

    @pytest.mark.parametrize("block_size", [1, BLOCK_SIZE - 1, BLOCK_SIZE + 1])
    def test_with_another_block_size(
        self, shape: str, sampling: SamplingParams, block_size: int, expected: Expected, make_loop: Run
    ) -> None:
        loop = make_loop(shape, block_size=block_size, num_blocks=512)
        assert loop.run([_request(1, sampling=sampling)]) == [expected(shape, sampling)]

    def test_after_a_prefix_hit(
        self, shape: str, sampling: SamplingParams, expected: Expected, make_loop: Run
    ) -> None:
        loop = make_loop(shape)
        loop.run([_request(0)])
        assert loop.run([_request(1, sampling=sampling)]) == [expected(shape, sampling)]
        assert loop.finished["r1"].num_prefix_hit_tokens == 2 * BLOCK_SIZE


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_with_a_preemption_at_a_block_border(
    sampling: SamplingParams, offset: int, depth: int, expected: Expected, make_loop: Run
) -> None:
    preempt = _PreemptAt([k * BLOCK_SIZE + offset for k in (3, 4, 6)])
    loop = make_loop("qwen3_gqa3", depth=depth, before_schedule=preempt)
    ids = loop.run([_request(1, sampling=sampling), *_others(2)])
    assert not preempt.left, "it was preempted at each length"
    assert ids[0] == expected("qwen3_gqa3", sampling)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
