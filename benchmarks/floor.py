"""The physical floor of each case of the workload on an H200: bytes over bandwidth, or flops over their rate.

    python -m benchmarks.floor [--bandwidth-tb-s 4.3] [--tflop-s 790] [--shape 0.6B|8B] [--num-cards 1]

Qwen3 in bf16. The defaults were measured on one H200: copy bandwidth, and a large matrix product. Several
cards share all work evenly, and tell each other of it in no time. Knows nothing about engines.
"""

import argparse
from dataclasses import dataclass, fields

from benchmarks.make_qwen3 import HEAD_DIM, NUM_KV_HEADS, SHAPES, VOCAB_SIZE
from benchmarks.workload import Case, cases
from model.config import ModelConfig

BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int = NUM_KV_HEADS
    head_dim: int = HEAD_DIM
    vocab_size: int = VOCAB_SIZE

    @classmethod
    def of(cls, config: ModelConfig) -> "Shape":
        """Return a checkpoint's."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a GPU can do at best, or several of them."""

    bytes_per_second: float = 4.3e12
    flops_per_second: float = 790e12

    def times(self, num_cards: int) -> "Card":
        """Return so many of them."""
        return Card(
            bytes_per_second=num_cards * self.bytes_per_second,
            flops_per_second=num_cards * self.flops_per_second,
        )


def qwen3_shape(name: str) -> Shape:
    """Return one of make_qwen3's shapes."""
    options = SHAPES[name]
    return Shape(
        num_layers=options["num_hidden_layers"],
        hidden_size=options["hidden_size"],
        intermediate_size=options["intermediate_size"],
        num_heads=options["num_attention_heads"],
    )


def layer_parameters(shape: Shape) -> int:
    """Weights of all layers."""
    attention = shape.hidden_size * (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return shape.num_layers * (attention + 3 * shape.hidden_size * shape.intermediate_size)


def prefill_seconds(num_tokens: int, *, shape: Shape, card: Card) -> float:
    """Return the floor of one prompt: compute bound; logits of its last token only."""
    attention_flops = shape.num_layers * 4 * shape.num_heads * shape.head_dim * num_tokens**2 / 2
    head_flops = 2 * shape.vocab_size * shape.hidden_size
    return (2 * layer_parameters(shape) * num_tokens + attention_flops + head_flops) / card.flops_per_second


def decode_seconds(context_lens: list[int], *, shape: Shape, card: Card) -> float:
    """Return the floor of one decode step: weights and K/V once, or its flops."""
    parameters = layer_parameters(shape) + shape.vocab_size * shape.hidden_size
    kv_bytes_per_token = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * BYTES
    num_bytes = BYTES * parameters + kv_bytes_per_token * sum(context_lens)
    return max(num_bytes / card.bytes_per_second, 2 * parameters * len(context_lens) / card.flops_per_second)


def floor_seconds(case: Case, *, shape: Shape, card: Card) -> float:
    """Return the floor of a case, all of its requests at once."""
    prompts, num_outs = case
    seconds = sum(prefill_seconds(len(prompt), shape=shape, card=card) for prompt in prompts)
    for num_done in range(1, max(num_outs)):
        live = [
            len(prompt) + num_done
            for prompt, num_out in zip(prompts, num_outs, strict=True)
            if num_out > num_done
        ]
        seconds += decode_seconds(live, shape=shape, card=card)
    return seconds


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bandwidth-tb-s", type=float, default=4.3)
    parser.add_argument("--tflop-s", type=float, default=790.0)
    parser.add_argument("--shape", choices=SHAPES, default="0.6B")
    parser.add_argument("--num-cards", type=int, default=1)
    arguments = parser.parse_args()
    card = Card(bytes_per_second=arguments.bandwidth_tb_s * 1e12, flops_per_second=arguments.tflop_s * 1e12)
    card, shape = card.times(arguments.num_cards), qwen3_shape(arguments.shape)
    for name, case in cases().items():
        seconds, num_steps = floor_seconds(case, shape=shape, card=card), max(case[1])
        print(
            f"{name:18s} floor {seconds:8.4f} s  {sum(case[1]) / seconds:10.0f} out tok/s"
            f"  {1e3 * seconds / num_steps:8.3f} ms/step"
        )


if __name__ == "__main__":
    main()
