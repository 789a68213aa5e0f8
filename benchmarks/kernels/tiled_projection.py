"""Tiled projections of dozens to hundreds of rows against cuBLAS and separate kernels.

    python benchmarks/kernels/tiled_projection.py [--rows 32 256]

Each projection of Qwen3-0.6B alone, with its norm, gate or sum, then a layer's four as a chain, over the
weights of 28 layers in one CUDA graph, each kernel started while the one before it runs. Knows nothing
about attention.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.decode_chain import LAYER_PROJECTIONS, NUM_LAYERS, PROJECTIONS, DecodeChain, Kernels
from benchmarks.gpu_timing import describe_card, graph_microseconds, matmul_ceiling, read_bandwidth

ROWS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def tell_rows(num_rows: int, *, read_rate: float, matmul_rate: float) -> None:
    """Print one line: what each takes with cuBLAS and tiled, and the share of what the card allows."""
    chain = DecodeChain(num_rows)
    columns = []
    for name in LAYER_PROJECTIONS:
        for kernels in (Kernels.CUBLAS, Kernels.TILED):
            columns.append(graph_microseconds(chain.projection(name, kernels, is_dependent=True)))
    for kernels in (Kernels.CUBLAS, Kernels.TILED):
        layers = [
            partial(chain.layer, kernels, layer, is_dependent=True, is_rotated=False)
            for layer in range(NUM_LAYERS)
        ]
        columns.append(graph_microseconds(layers))
    num_bytes = sum(PROJECTIONS[name].num_bytes for name in LAYER_PROJECTIONS)
    floor = max(num_bytes / read_rate / 1e3, num_bytes * num_rows / matmul_rate / 1e6)
    figures = "".join(f"{column:8.2f}" for column in columns)
    print(f"{num_rows:4d}{figures}{100 * floor / columns[-1]:8.1f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time projections of dozens to hundreds of rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    read_rate, matmul_rate = read_bandwidth(), matmul_ceiling()
    print(f"{describe_card()}; read {read_rate:.0f} GB/s, product {matmul_rate:.0f} TFLOP/s")
    print("µs with cuBLAS and tiled; the layer's share of the floor of bytes or operations")
    print("rows" + "".join(f"{name:>10s}      " for name in (*LAYER_PROJECTIONS, "layer")) + "  share%")
    for num_rows in options.rows:
        tell_rows(num_rows, read_rate=read_rate, matmul_rate=matmul_rate)


if __name__ == "__main__":
    main()
