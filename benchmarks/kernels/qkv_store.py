"""QKV projection, norms, RoPE and KV store in one launch, beside the two launches that it replaces.

    python benchmarks/kernels/qkv_store.py [--rows 48 64 128 256]

Qwen3-0.6B's sizes, over the weights of 28 layers in one CUDA graph, each kernel started while the one before
it runs. Knows nothing about attention.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_timing import Launch, describe_card, graph_microseconds
from kernels.qkv_rows import QkvRows, rotate_and_store
from kernels.qkv_store import choose_qkv_tile, qkv_store
from kernels.row_squares import sum_squares
from kernels.tiled_projection import norm_linear

E, H, K, D = 1024, 16, 8, 128
EPS = 1e-6
NUM_LAYERS = 28
BLOCK_SIZE = 16
NUM_POSITIONS = 4096
ROWS = (48, 64, 96, 128, 192, 256)


class Bench:
    """All layers' weights, and one layer's cache."""

    def __init__(self) -> None:
        self._weights = torch.randn(NUM_LAYERS, (H + 2 * K) * D, E, device="cuda").mul_(E**-0.5).bfloat16()
        self._caches = torch.zeros(2, max(ROWS), BLOCK_SIZE, K, D, device="cuda").bfloat16()
        self._norm_D = torch.ones(D, device="cuda").bfloat16()
        self._cos_sin_PD = torch.randn(NUM_POSITIONS, D, device="cuda")

    def launches(self, num_rows: int) -> tuple[list[Launch], list[Launch]]:
        """Return launches of one kernel, and pairs of two."""
        x_RE = torch.randn(num_rows, E, device="cuda").bfloat16()
        squares_RJ = sum_squares(x_RE)
        rows = QkvRows(
            qkv_TX=torch.empty(num_rows, (H + 2 * K) * D, device="cuda").bfloat16(),
            positions_T=torch.arange(num_rows, dtype=torch.int32, device="cuda"),
            slot_mapping_T=torch.arange(num_rows, device="cuda") * BLOCK_SIZE,
            cos_sin_PD=self._cos_sin_PD,
            q_norm_D=self._norm_D,
            k_norm_D=self._norm_D,
            eps=EPS,
            q_THD=torch.empty(num_rows, H, D, device="cuda").bfloat16(),
        )
        tile = choose_qkv_tile(num_rows, num_all_heads=H + 2 * K, head_dim=D, itemsize_bytes=2)
        assert tile is not None, "the rows are too few or too many"

        def two(weight: torch.Tensor) -> None:
            norm_linear(
                *(x_RE, None, weight, EPS, rows.qkv_TX),
                is_normed=True,
                squares_RJ=squares_RJ,
                is_dependent=True,
            )
            rotate_and_store(rows, self._caches[0], self._caches[1])

        one = partial(qkv_store, squares_RJ=squares_RJ, tile=tile, is_dependent=True)
        return (
            [partial(one, x_RE, weight, EPS, rows, *self._caches) for weight in self._weights],
            [partial(two, weight) for weight in self._weights],
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time the projection of heads that are made ready in it.")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    bench = Bench()
    print(describe_card())
    print("rows    one µs    two µs")
    for num_rows in options.rows:
        one, two = bench.launches(num_rows)
        print(f"{num_rows:4d} {graph_microseconds(one):9.2f} {graph_microseconds(two):9.2f}", flush=True)


if __name__ == "__main__":
    main()
