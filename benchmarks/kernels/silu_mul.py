"""SiLU·mul at Qwen3-0.6B's width: GB/s, and the share of the copy bandwidth.

    python benchmarks/kernels/silu_mul.py

Knows nothing about the model around it.
"""

import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets, tell, tell_header
from benchmarks.gpu_timing import Launch, copy_bandwidth, describe_card, graph_microseconds
from kernels.silu_mul import silu_mul

F = 3072
ROWS = (1, 8, 32, 256, 2048, 8192, 65536)


def num_bytes(num_rows: int) -> int:
    """Count two numbers read and one written."""
    return 3 * num_rows * F * 2


def launches(num_rows: int, *, is_dependent: bool) -> list[Launch]:
    """Return one launch a set."""
    sets = torch.randn(num_input_sets(num_bytes(num_rows)), num_rows, 3 * F, device="cuda").bfloat16()
    return [
        partial(silu_mul, one[:, : 2 * F], out=one[:, 2 * F :], is_dependent=is_dependent) for one in sets
    ]


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = copy_bandwidth()
    tell_header(ceiling, describe_card())
    for num_rows in ROWS:
        alone = graph_microseconds(launches(num_rows, is_dependent=False))
        early = graph_microseconds(launches(num_rows, is_dependent=True))
        tell(f"silu_mul {num_rows} x {F}", alone, early=early, num_bytes=num_bytes(num_rows), ceiling=ceiling)


if __name__ == "__main__":
    main()
