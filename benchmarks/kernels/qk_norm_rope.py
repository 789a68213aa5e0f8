"""Norms, RoPE and KV store at Qwen3-0.6B's heads: GB/s, and the share of the copy bandwidth.

    python benchmarks/kernels/qk_norm_rope.py

"fresh" is as new prompts have it: projected without a norm, whose factor is read off the residual, and keys
and values left in place, too.

Knows nothing about the model around it.
"""

import sys
from functools import partial
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets, tell, tell_header
from benchmarks.gpu_timing import Launch, copy_bandwidth, describe_card, graph_microseconds
from kernels.qk_norm_rope import qk_norm_rope_store

E, H, K, D = 1024, 16, 8, 128
EPS = 1e-6
BLOCK_SIZE = 16
NUM_BLOCKS = 1 << 16
"""4 GiB of cells."""
NUM_POSITIONS = 40960
TOKENS = (1, 8, 32, 256, 2048, 8192, 65536)


def num_bytes(num_tokens: int, *, is_fresh: bool) -> int:
    """Count all heads read and written once, keys and values twice where they are left in place."""
    return num_tokens * (2 * (H + 2 * K) * D + (E + 2 * K * D if is_fresh else 0)) * 2


def launches(caches: torch.Tensor, num_tokens: int, *, is_fresh: bool, is_dependent: bool) -> list[Launch]:
    """Return one launch a set, each into slots of its own as far as the cache goes."""
    residual_TE = torch.randn(num_tokens, E, device="cuda").bfloat16() if is_fresh else None
    num_sets, cos_sin_PD = (
        num_input_sets(num_bytes(num_tokens, is_fresh=is_fresh)),
        torch.randn(NUM_POSITIONS, D, device="cuda"),
    )
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
            residual_TE=residual_TE,
            in_place=is_fresh,
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
    for num_tokens, is_fresh in product(TOKENS, (False, True)):
        alone, early = (
            graph_microseconds(launches(caches, num_tokens, is_fresh=is_fresh, is_dependent=is_dependent))
            for is_dependent in (False, True)
        )
        case = f"qk_norm_rope_store {num_tokens}{' fresh' if is_fresh else ''}"
        tell(case, alone, early=early, num_bytes=num_bytes(num_tokens, is_fresh=is_fresh), ceiling=ceiling)


if __name__ == "__main__":
    main()
