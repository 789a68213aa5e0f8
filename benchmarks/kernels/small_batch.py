"""Fused projections of a few rows against cuBLAS and separate kernels, at Qwen3-0.6B's shapes.

    python benchmarks/kernels/small_batch.py            each projection, then the whole chain of layers
    python benchmarks/kernels/small_batch.py --tune     tiles of each projection (minutes)

The chain is one decode step without its attention, in one CUDA graph. "early" starts each kernel while
the one before it runs. Knows nothing about attention or sampling.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.decode_chain import BYTES_PER_STEP, PROJECTIONS, DecodeChain, Kernels
from benchmarks.gpu_timing import describe_card, graph_microseconds, read_bandwidth
from kernels.small_batch import MAX_ROWS, MAX_ROWS_WITHOUT_DOT, Tile, choose_tile

ROWS = (1, 2, 4, 8, 16, 32)
MAX_NUMBERS_PER_THREAD = 128
MAX_NUMBERS_BESIDE_ROWS = 1 << 15


def time_projections(chain: DecodeChain, ceiling: float) -> None:
    """Print one line a projection: its norm, gate or sum is in all of its times."""
    for name, projection in PROJECTIONS.items():
        times = [
            graph_microseconds(chain.projection(name, kernels, is_dependent=is_dependent))
            for kernels in (Kernels.CUBLAS, Kernels.FEW_ROWS)
            for is_dependent in (False, True)
        ]
        _tell(f"{chain.num_rows:4d} {name:8s}", times, share=projection.num_bytes / ceiling)


def time_chain(chain: DecodeChain, ceiling: float) -> None:
    """Print the time of all layers and the head."""
    times = [
        graph_microseconds([partial(chain.step, kernels, is_dependent=is_dependent)])
        for kernels in (Kernels.CUBLAS, Kernels.FEW_ROWS)
        for is_dependent in (False, True)
    ]
    _tell(f"{chain.num_rows:4d} chain   ", times, share=BYTES_PER_STEP / ceiling)


def _tell(case: str, times: list[float], *, share: float) -> None:
    columns = "".join(f"{time:10.2f}" for time in times)
    print(f"{case}{columns} {share / 10 / min(times):10.1f}", flush=True)


def candidates(num_inputs: int, num_rows: int) -> list[Tile]:
    """Return tiles whose threads hold neither too little nor too much."""
    tiles = []
    if num_rows <= MAX_ROWS_WITHOUT_DOT:
        tiles += [(outputs, warps, False, False) for outputs in (1, 2, 4, 8) for warps in (1, 2, 4, 8)]
    if num_rows > 1:
        tiles += [
            (outputs, warps, True, is_swapped)
            for outputs in (8, 16, 32)
            for warps in (4, 8, 16)
            for is_swapped in (False, True)
            if not is_swapped or outputs * num_inputs <= MAX_NUMBERS_BESIDE_ROWS
        ]
    return [
        Tile(num_outputs=num_outputs, num_warps=num_warps, is_dot=is_dot, is_swapped=is_swapped)
        for num_outputs, num_warps, is_dot, is_swapped in tiles
        if 16 <= num_outputs * num_inputs // (32 * num_warps) <= MAX_NUMBERS_PER_THREAD
    ]


def tune(chain: DecodeChain) -> None:
    """Print the best tiles of each projection, all started early."""
    for name, projection in PROJECTIONS.items():
        timed = []
        for tile in candidates(projection.num_inputs, chain.num_rows):
            launches = chain.projection(name, Kernels.FEW_ROWS, is_dependent=True, tile=tile)
            timed.append((graph_microseconds(launches, num_replays=5), tile))
        timed.sort(key=lambda pair: pair[0])
        chosen = choose_tile(projection.num_outputs, projection.num_inputs, num_rows=chain.num_rows)
        best = ", ".join(f"{time:.2f} µs {_describe(tile)}" for time, tile in timed[:5])
        print(f"{chain.num_rows:4d} {name:8s} chosen {_describe(chosen)}; best {best}", flush=True)


def _describe(tile: Tile) -> str:
    kind = ", swapped" if tile.is_swapped else ", dot" if tile.is_dot else ""
    return f"({tile.num_outputs}, {tile.num_warps}{kind})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Time projections of a few rows.")
    parser.add_argument("--tune", action="store_true", help="try tiles: outputs, warps, tensor cores")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help=f"at most {MAX_ROWS}")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    ceiling = read_bandwidth()
    chains = [DecodeChain(num_rows) for num_rows in options.rows]
    print(f"{describe_card()}; read bandwidth {ceiling:.0f} GB/s; times in µs")
    if options.tune:
        for chain in chains:
            tune(chain)
        return
    print("rows            cuBLAS     early     fused     early  best share%")
    for timing in (time_projections, time_chain):
        for chain in chains:
            timing(chain, ceiling)


if __name__ == "__main__":
    main()
