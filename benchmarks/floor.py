"""The physical floor of each case of the workload on an H200: bytes over bandwidth, or flops over their rate.

    python -m benchmarks.floor [--bandwidth-tb-s 4.3] [--tflop-s 790]

Qwen3-0.6B in bf16. The defaults were measured on one H200: copy bandwidth, and a large matrix product.
Knows nothing about engines.
"""

import argparse
from dataclasses import dataclass

from benchmarks.workload import Case, cases

NUM_LAYERS, HIDDEN, INTERMEDIATE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VOCAB = (
    28,
    1024,
    3072,
    16,
    8,
    128,
    151936,
)
BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a GPU can do at best."""

    bytes_per_second: float = 4.3e12
    flops_per_second: float = 790e12


def layer_parameters() -> int:
    """Weights of all layers."""
    attention = HIDDEN * (2 * NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    return NUM_LAYERS * (attention + 3 * HIDDEN * INTERMEDIATE)


def prefill_seconds(num_tokens: int, card: Card) -> float:
    """Return the floor of one prompt: compute bound; logits of its last token only."""
    attention_flops = NUM_LAYERS * 4 * NUM_HEADS * HEAD_DIM * num_tokens**2 / 2
    flops = 2 * layer_parameters() * num_tokens + attention_flops + 2 * VOCAB * HIDDEN
    return flops / card.flops_per_second


def decode_seconds(context_lens: list[int], card: Card) -> float:
    """Return the floor of one decode step: weights and K/V once, or its flops."""
    parameters = layer_parameters() + VOCAB * HIDDEN
    kv_bytes_per_token = NUM_LAYERS * 2 * NUM_KV_HEADS * HEAD_DIM * BYTES
    num_bytes = BYTES * parameters + kv_bytes_per_token * sum(context_lens)
    return max(num_bytes / card.bytes_per_second, 2 * parameters * len(context_lens) / card.flops_per_second)


def floor_seconds(case: Case, card: Card | None = None) -> float:
    """Return the floor of a case, all of its requests at once."""
    card = card or Card()
    prompts, num_outs = case
    seconds = sum(prefill_seconds(len(prompt), card) for prompt in prompts)
    for num_done in range(1, max(num_outs)):
        live = [
            len(prompt) + num_done
            for prompt, num_out in zip(prompts, num_outs, strict=True)
            if num_out > num_done
        ]
        seconds += decode_seconds(live, card)
    return seconds


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bandwidth-tb-s", type=float, default=4.3)
    parser.add_argument("--tflop-s", type=float, default=790.0)
    arguments = parser.parse_args()
    card = Card(bytes_per_second=arguments.bandwidth_tb_s * 1e12, flops_per_second=arguments.tflop_s * 1e12)
    for name, case in cases().items():
        seconds, num_steps = floor_seconds(case, card), max(case[1])
        print(
            f"{name:18s} floor {seconds:8.4f} s  {sum(case[1]) / seconds:10.0f} out tok/s"
            f"  {1e3 * seconds / num_steps:8.3f} ms/step"
        )


if __name__ == "__main__":
    main()
