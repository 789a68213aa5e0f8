"""Preparing decode rows: microseconds, which a launch costs anyway.

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
from kernels.prepare import prepare_decode

NUM_LANES, MAX_MODEL_LEN, BLOCK_SIZE = 1024, 4096, 16
BYTES_PER_ROW = 4 + 4 + 4 + 4 + 4 + 8 + 4
"""Lane, position, token and block read; id, slot and length written."""


def launches(num_rows: int, *, is_dependent: bool) -> list[Launch]:
    """Return launches over rows of other lanes and positions."""
    pool_LP = torch.zeros(NUM_LANES, MAX_MODEL_LEN + 1, dtype=torch.int32, device="cuda")
    table_LM = torch.zeros(NUM_LANES, MAX_MODEL_LEN // BLOCK_SIZE + 1, dtype=torch.int32, device="cuda")
    positions = torch.randint(0, MAX_MODEL_LEN, (MAX_SETS, num_rows), dtype=torch.int32, device="cuda")
    lanes = torch.stack([torch.randperm(NUM_LANES, device="cuda")[:num_rows] for _ in range(MAX_SETS)]).int()
    ids, slots, lens = torch.empty_like(lanes), torch.empty_like(lanes).long(), torch.empty_like(lanes)
    return [
        partial(
            prepare_decode,
            *(lanes[index], positions[index], pool_LP, table_LM, BLOCK_SIZE),
            *(ids[index], slots[index], lens[index]),
            is_dependent=is_dependent,
        )
        for index in range(MAX_SETS)
    ]


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = copy_bandwidth()
    tell_header(ceiling, describe_card())
    for num_rows in (1, 32, 256, 1024):
        alone = graph_microseconds(launches(num_rows, is_dependent=False))
        early = graph_microseconds(launches(num_rows, is_dependent=True))
        num_bytes = num_rows * BYTES_PER_ROW
        tell(f"prepare_decode {num_rows} rows", alone, early=early, num_bytes=num_bytes, ceiling=ceiling)


if __name__ == "__main__":
    main()
