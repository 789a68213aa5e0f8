"""Decode speed on a CPU: both services through the Python client, against transformers' generate.

    python -m benchmarks.cpu_engine [--model FOLDER] [--tokens 96] [--rounds 3]

float32 and one torch thread each. The two are timed in turns within one run, because absolute times
of a shared machine mean little; prefill is left out of both (time from the first token to the last).
Knows nothing about how either computes.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from stepwire_client import AsyncStepwireClient

from tools.fetch_smollm2 import DEFAULT_FOLDER
from tools.services import running_services

MIN_SHARE_OF_TRANSFORMERS = 0.9
MIN_GAIN_OF_EIGHT = 2.5
NUM_CONCURRENT = 8
PROMPT = "Once upon a time, in a small village by the sea, there lived a"


class Transformers:
    """transformers' own generate, greedy, in this process."""

    def __init__(self, model: Path, num_tokens: int) -> None:
        import torch  # noqa: PLC0415
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

        torch.set_num_threads(1)
        self._torch: Any = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.prompt_token_ids: list[int] = AutoTokenizer.from_pretrained(model)(PROMPT)["input_ids"]
        self._num_tokens = num_tokens
        self._run(2)

    def tokens_per_second(self) -> float:
        """Time one generation less its first token."""
        first_seconds = self._run(1)
        return (self._num_tokens - 1) / (self._run(self._num_tokens) - first_seconds)

    def _run(self, num_tokens: int) -> float:
        ids = self._torch.tensor([self.prompt_token_ids])
        start = time.perf_counter()
        with self._torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
            )
        assert output.shape[1] == ids.shape[1] + num_tokens
        return time.perf_counter() - start


async def _generate(client: AsyncStepwireClient, prompt: list[int], num_tokens: int) -> tuple[float, float]:
    """Run one request; return when its first and its last token came."""
    times = []
    async with client.generate(prompt, temperature=0, max_tokens=num_tokens, ignore_eos=True) as stream:
        async for delta in stream:
            times += [time.perf_counter()] * len(delta.token_ids)
    assert len(times) == num_tokens
    return times[0], times[-1]


async def _tokens_per_second(address: str, prompts: list[list[int]], num_tokens: int) -> float:
    """Run requests at once; count their tokens from the first one's first token to the last one's last."""
    async with AsyncStepwireClient(address) as client:
        spans = await asyncio.gather(*(_generate(client, prompt, num_tokens) for prompt in prompts))
    seconds = max(last for _, last in spans) - min(first for first, _ in spans)
    return len(prompts) * (num_tokens - 1) / seconds


def _measure(address: str, transformers: Transformers, *, num_tokens: int, num_rounds: int) -> None:
    """Time the three in turns and print them."""
    rng = np.random.default_rng(0)
    prompt = transformers.prompt_token_ids
    # Different prompts, so that none of them is served from another's cached prefix.
    many = [rng.permutation(prompt).tolist() for _ in range(NUM_CONCURRENT)]
    rows = []
    for _ in range(num_rounds):
        reference = transformers.tokens_per_second()
        one = asyncio.run(_tokens_per_second(address, [prompt], num_tokens))
        eight = asyncio.run(_tokens_per_second(address, many, num_tokens))
        rows.append((reference, one, eight))
        print(
            f"transformers {reference:6.1f}   stepwire {one:6.1f}   stepwire x8 {eight:6.1f}   tokens/s",
            flush=True,
        )
    reference, one, eight = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"batch 1: {one / reference:.2f} of transformers' generate "
        f"(goal: at least {MIN_SHARE_OF_TRANSFORMERS})"
    )
    print(f"batch {NUM_CONCURRENT}: {eight / one:.2f} times batch 1 (goal: at least {MIN_GAIN_OF_EIGHT})")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_FOLDER, help="model folder")
    parser.add_argument("--tokens", type=int, default=96, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    arguments = parser.parse_args()
    transformers = Transformers(arguments.model, arguments.tokens)
    worker_flags = ("--dtype", "float32", "--torch-threads", "1", "--kv-cache-gib", "1")
    with running_services(arguments.model, worker_flags=worker_flags) as services:
        _measure(services.address, transformers, num_tokens=arguments.tokens, num_rounds=arguments.rounds)


if __name__ == "__main__":
    main()
