"""Norms, RoPE and KV store at Qwen3-0.6B's heads: GB/s, and the share of the copy bandwidth.

    python benchmarks/kernels/qk_norm_rope.py

Knows nothing about the model around it.
"""

import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets, tell, tell_header
from benchmarks.gpu_timing import Launch, copy_bandwidth, describe_card, graph_microseconds
from kernels.qk_norm_rope import qk_norm_rope_store

H, K, D = 16, 8, 128
EPS = 1e-6
BLOCK_SIZE = 16
NUM_BLOCKS = 1 << 16
"""4 GiB of cells."""
NUM_POSITIONS = 40960
TOKENS = (1, 8, 32, 256, 2048, 8192, 65536)


def num_bytes(num_tokens: int) -> int:
    """Count all heads read and written once."""
    return 2 * num_tokens * (H + 2 * K) * D * 2


def launches(caches: torch.Tensor, num_tokens: int, *, is_dependent: bool) -> list[Launch]:
    """Return one launch a set, each into slots of its own as far as the cache goes."""
    num_sets, cos_sin_PD = num_input_sets(num_bytes(num_tokens)), torch.randn(NUM_POSITIONS, D, device="cuda")
    weight_D = torch.ones(D, device="cuda").bfloat16()
    qkvs = torch.randn(num_sets, num_tokens, (H + 2 * K) * D, device="cuda").bfloat16()
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, device="cuda")[: num_sets * num_tokens].view(num_sets, -1)
    positions = torch.randint(0, NUM_POSITIONS, (num_sets, num_tokens), device="cuda", dtype=torch.int32)
    outs = torch.empty(num_sets, num_tokens, H, D, device="cuda", dtype=torch.bfloat16)
    norms = (weight_D, weight_D, EPS)
    return [
        partial(
            qk_norm_rope_store,
            *(qkvs[index], positions[index], cos_sin_PD, *norms, *caches, slots[index], H, K, outs[index]),
            is_dependent=is_dependent,
        )
        for index in range(num_sets)
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
        case = f"qk_norm_rope_store {num_tokens} tokens"
        tell(case, alone, early=early, num_bytes=num_bytes(num_tokens), ceiling=ceiling)


if __name__ == "__main__":
    main()
