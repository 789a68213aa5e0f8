"""The workload every engine is timed on: nano-vllm's published one, and latency and prefill probes.

Knows nothing about engines. Prompts are random, so that no prefix is shared.
Source: bench.py of nano-vllm for nano256.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

Case = tuple[list[list[int]], list[int]]
"""Prompts, and how many tokens to generate for each."""

MAX_TOKEN_ID = 10_000


def nano() -> Case:
    """256 requests of 100 to 1024 tokens in, and as many out."""
    random = Random(0)
    prompts = [
        [random.randint(0, MAX_TOKEN_ID) for _ in range(random.randint(100, 1024))] for _ in range(256)
    ]
    return prompts, [random.randint(100, 1024) for _ in range(256)]


def fixed(num_requests: int, num_in: int, *, num_out: int, seed: int) -> Case:
    """Requests of one shape."""
    random = Random(seed)
    prompts = [[random.randint(0, MAX_TOKEN_ID) for _ in range(num_in)] for _ in range(num_requests)]
    return prompts, [num_out] * num_requests


CASES: dict[str, Callable[[], Case]] = {
    "nano256": nano,
    "bs1_128_512": partial(fixed, 1, 128, num_out=512, seed=1),
    "bs8_128_512": partial(fixed, 8, 128, num_out=512, seed=2),
    "bs32_128_512": partial(fixed, 32, 128, num_out=512, seed=3),
    "bs1024_256_256": partial(fixed, 1024, 256, num_out=256, seed=4),
    "prefill_64x1024": partial(fixed, 64, 1024, num_out=1, seed=5),
    "prefill_1x4000": partial(fixed, 1, 4000, num_out=1, seed=6),
}
"""How each case is made, by name."""


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    return {name: make() for name, make in CASES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRange:
    """A number of tokens: fixed, or uniform between two, both of them included."""

    low: int
    high: int

    @property
    def label(self) -> str:
        """Say it as a flag does."""
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"

    def draw(self, random: Random) -> int:
        """Draw one."""
        return random.randint(self.low, self.high)


def shaped(num_requests: int, *, num_in: LengthRange, num_out: LengthRange, seed: int) -> Case:
    """Requests of lengths that the caller gives."""
    random = Random(seed)
    prompts = [
        [random.randint(0, MAX_TOKEN_ID) for _ in range(num_in.draw(random))] for _ in range(num_requests)
    ]
    return prompts, [num_out.draw(random) for _ in range(num_requests)]


def fit_vocabulary(case: Case, vocab_size: int) -> Case:
    """Return the case with token ids that a model of a smaller vocabulary has, too."""
    prompts, num_outs = case
    if vocab_size > MAX_TOKEN_ID:
        return case
    return [[token_id % vocab_size for token_id in prompt] for prompt in prompts], num_outs


def share_prefix(case: Case, num_tokens: int) -> Case:
    """Return the case with the first tokens of all prompts alike."""
    prompts, num_outs = case
    prefix = max(prompts, key=len)[:num_tokens]
    return [(prefix + prompt[num_tokens:])[: len(prompt)] for prompt in prompts], num_outs
