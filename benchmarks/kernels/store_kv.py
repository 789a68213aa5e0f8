"""The KV store alone at Qwen3-0.6B's heads: GB/s, and the share of the copy bandwidth.

    python benchmarks/kernels/store_kv.py

Knows nothing about the model around it.
"""

import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets, tell, tell_header
from benchmarks.gpu_timing import Launch, copy_bandwidth, describe_card, graph_microseconds
from kernels.store_kv import store_kv

K, D = 8, 128
BLOCK_SIZE = 16
NUM_BLOCKS = 1 << 16
"""4 GiB of cells."""
TOKENS = (1, 32, 256, 2048, 8192, 65536)


def num_bytes(num_tokens: int) -> int:
    """Count K and V read and written once."""
    return 2 * 2 * num_tokens * K * D * 2


def launches(caches: torch.Tensor, num_tokens: int, *, is_dependent: bool) -> list[Launch]:
    """Return one launch a set, each into slots of its own as far as the cache goes."""
    num_sets = num_input_sets(num_bytes(num_tokens))
    tokens = torch.randn(num_sets, 2, num_tokens, K, D, device="cuda").bfloat16()
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, device="cuda")[: num_sets * num_tokens].view(num_sets, -1)
    return [
        partial(store_kv, key, value, caches[0], caches[1], slots_T, is_dependent=is_dependent)
        for (key, value), slots_T in zip(tokens, slots, strict=True)
    ]


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = copy_bandwidth()
    caches = torch.zeros(2, NUM_BLOCKS, BLOCK_SIZE, K, D, device="cuda", dtype=torch.bfloat16)
    tell_header(ceiling, describe_card())
    for num_tokens in TOKENS:
        alone = graph_microseconds(launches(caches, num_tokens, is_dependent=False))
        early = graph_microseconds(launches(caches, num_tokens, is_dependent=True))
        tell(
            f"store_kv {num_tokens} tokens",
            alone,
            early=early,
            num_bytes=num_bytes(num_tokens),
            ceiling=ceiling,
        )


if __name__ == "__main__":
    main()
