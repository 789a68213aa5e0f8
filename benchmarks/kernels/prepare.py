"""Preparing tokens: microseconds, which a launch costs anyway.

    python benchmarks/kernels/prepare.py

Knows nothing about the step around it.
"""

import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import MAX_SETS, tell, tell_header
from benchmarks.gpu_timing import Launch, copy_bandwidth, describe_card, graph_microseconds
from kernels.prepare import prepare_tokens

NUM_LANES, MAX_MODEL_LEN, BLOCK_SIZE = 1024, 4096, 16
BYTES_PER_TOKEN = 4 + 4 + 4 + 4 + 4 + 8
"""Lane, position, token and block read; id and slot written."""


def launches(num_tokens: int) -> list[Launch]:
    """Return launches over tokens of other lanes and positions."""
    pool_LP = torch.zeros(NUM_LANES, MAX_MODEL_LEN + 1, dtype=torch.int32, device="cuda")
    table_LM = torch.zeros(NUM_LANES, MAX_MODEL_LEN // BLOCK_SIZE + 1, dtype=torch.int32, device="cuda")
    positions = torch.randint(0, MAX_MODEL_LEN, (MAX_SETS, num_tokens), dtype=torch.int32, device="cuda")
    lanes = torch.stack(
        [torch.randperm(NUM_LANES, device="cuda")[:num_tokens] for _ in range(MAX_SETS)]
    ).int()
    ids, slots = torch.empty_like(lanes), torch.empty_like(lanes).long()
    return [
        partial(
            prepare_tokens,
            *(lanes[index], positions[index], pool_LP, table_LM, BLOCK_SIZE),
            *(ids[index], slots[index]),
        )
        for index in range(MAX_SETS)
    ]


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = copy_bandwidth()
    tell_header(ceiling, describe_card())
    for num_tokens in (16, 256, 1024):
        alone = graph_microseconds(launches(num_tokens))
        num_bytes = num_tokens * BYTES_PER_TOKEN
        tell(f"prepare_tokens {num_tokens} tokens", alone, num_bytes=num_bytes, ceiling=ceiling)


if __name__ == "__main__":
    main()
