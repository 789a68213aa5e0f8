"""SiLU·mul at Qwen3-0.6B's width: GB/s, and the share of the copy bandwidth.

    python benchmarks/kernels/silu_mul.py

"scaled" takes the factor of the norm that its rows were projected without, which reads the residual.

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
from kernels.silu_mul import silu_mul

E, F = 1024, 3072
EPS = 1e-6
ROWS = (1, 8, 32, 256, 2048, 8192, 65536)


def num_bytes(num_rows: int, *, is_scaled: bool) -> int:
    """Count two numbers read and one written, and the residual."""
    return num_rows * (3 * F + (E if is_scaled else 0)) * 2


def launches(num_rows: int, *, is_scaled: bool, is_dependent: bool) -> list[Launch]:
    """Return one launch a set."""
    num_sets = num_input_sets(num_bytes(num_rows, is_scaled=is_scaled))
    sets = torch.randn(num_sets, num_rows, 3 * F + E, device="cuda").bfloat16()
    return [
        partial(
            silu_mul,
            one[:, : 2 * F],
            out=one[:, 2 * F : 3 * F],
            residual_TE=one[:, 3 * F :] if is_scaled else None,
            eps=EPS,
            is_dependent=is_dependent,
        )
        for one in sets
    ]


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = copy_bandwidth()
    tell_header(ceiling, describe_card())
    for num_rows, is_scaled in product(ROWS, (False, True)):
        alone, early = (
            graph_microseconds(launches(num_rows, is_scaled=is_scaled, is_dependent=is_dependent))
            for is_dependent in (False, True)
        )
        case = f"silu_mul {num_rows} x {F}{' scaled' if is_scaled else ''}"
        tell(case, alone, early=early, num_bytes=num_bytes(num_rows, is_scaled=is_scaled), ceiling=ceiling)


if __name__ == "__main__":
    main()
