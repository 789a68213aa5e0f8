"""The workload every engine is timed on: nano-vllm's published one, and latency and prefill probes.

Knows nothing about engines. Prompts are random, so that no prefix is shared.
Source: bench.py of nano-vllm for nano256.
"""

from random import Random

Case = tuple[list[list[int]], list[int]]
"""Prompts, and how many tokens to generate for each."""


def nano() -> Case:
    """256 requests of 100 to 1024 tokens in, and as many out."""
    random = Random(0)
    prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
    return prompts, [random.randint(100, 1024) for _ in range(256)]


def fixed(num_requests: int, num_in: int, *, num_out: int, seed: int) -> Case:
    """Requests of one shape."""
    random = Random(seed)
    prompts = [[random.randint(0, 10000) for _ in range(num_in)] for _ in range(num_requests)]
    return prompts, [num_out] * num_requests


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    return {
        "nano256": nano(),
        "bs1_128_512": fixed(1, 128, num_out=512, seed=1),
        "bs8_128_512": fixed(8, 128, num_out=512, seed=2),
        "bs32_128_512": fixed(32, 128, num_out=512, seed=3),
        "bs1024_256_256": fixed(1024, 256, num_out=256, seed=4),
        "prefill_64x1024": fixed(64, 1024, num_out=1, seed=5),
        "prefill_1x4000": fixed(1, 4000, num_out=1, seed=6),
    }
