"""Residual plus RMS norm at Qwen3-0.6B's width: GB/s, and the share of the copy bandwidth.

    python benchmarks/kernels/fused_norm.py [--tune]

Knows nothing about the model around it.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets, tell, tell_header
from benchmarks.gpu_timing import Launch, copy_bandwidth, describe_card, graph_microseconds
from kernels.fused_norm import add_rms_norm, add_rms_norm_kernel, choose_norm_tile

E = 1024
EPS = 1e-6
ROWS = (1, 8, 32, 256, 2048, 8192, 65536)


def num_bytes(num_rows: int) -> int:
    """Count two tensors read and two written."""
    return 4 * num_rows * E * 2


def inputs(num_rows: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return (x, residual, out) of each set."""
    shape = (num_input_sets(num_bytes(num_rows)), 3, num_rows, E)
    return [(one[0], one[1], one[2]) for one in torch.randn(shape, device="cuda").bfloat16()]


def launches(num_rows: int, *, is_dependent: bool) -> list[Launch]:
    """Return one launch a set."""
    weight_E = torch.ones(E, device="cuda").bfloat16()
    return [
        partial(add_rms_norm, x, residual, weight_E, EPS, out=out, is_dependent=is_dependent)
        for x, residual, out in inputs(num_rows)
    ]


def tile_launches(num_rows: int, *, rows: int, num_warps: int) -> list[Launch]:
    """Return launches with another tile than the chosen one."""
    weight_E = torch.ones(E, device="cuda").bfloat16()
    sizes = {"E": E, "ROWS": rows, "BLOCK_E": E, "HAS_RESIDUAL": True, "PDL": False, "num_warps": num_warps}
    kernel = add_rms_norm_kernel[(triton.cdiv(num_rows, rows),)]
    return [
        partial(kernel, x, residual, weight_E, out, E, E, E, num_rows, EPS, **sizes)
        for x, residual, out in inputs(num_rows)
    ]


def tune(num_rows: int) -> None:
    """Print the five best tiles."""
    times = [
        (graph_microseconds(tile_launches(num_rows, rows=rows, num_warps=num_warps)), rows, num_warps)
        for rows in (1, 2, 4, 8)
        for num_warps in (1, 2, 4, 8)
    ]
    best = ", ".join(f"{time:.2f} µs ({rows}, {num_warps})" for time, rows, num_warps in sorted(times)[:5])
    print(f"{num_rows:6d} rows, chosen {choose_norm_tile(num_rows, E)}; best {best}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time the fused norm.")
    parser.add_argument("--tune", action="store_true", help="try tiles (rows a program, warps)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    ceiling = copy_bandwidth()
    tell_header(ceiling, describe_card())
    for num_rows in ROWS:
        alone = graph_microseconds(launches(num_rows, is_dependent=False))
        early = graph_microseconds(launches(num_rows, is_dependent=True))
        tell(
            f"add_rms_norm {num_rows} x {E}",
            alone,
            early=early,
            num_bytes=num_bytes(num_rows),
            ceiling=ceiling,
        )
    for num_rows in ROWS if options.tune else ():
        tune(num_rows)


if __name__ == "__main__":
    main()
