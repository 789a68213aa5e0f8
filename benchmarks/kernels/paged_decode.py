"""Paged decode attention at Qwen3-0.6B's shapes: GB/s of K and V, the share of the read bandwidth, energy.

    python benchmarks/kernels/paged_decode.py                    the chosen configurations
    python benchmarks/kernels/paged_decode.py --tune --block-sizes 16 --rows 256    of paged_decode_kernel

Each launch reads blocks of its own, scattered over a large pool; flash-attn stands beside it where
it is installed and takes the block size. Knows nothing about the model around it.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_energy import graph_millijoules
from benchmarks.gpu_timing import Launch, describe_card, graph_microseconds, read_bandwidth
from benchmarks.paged_pool import HEAD_DIM, HEADS, WIDEST_CONTEXT, Case, CellPool
from kernels.decode_config import DecodeConfig, make_decode_workspace
from kernels.hopper_decode import can_use_hopper_decode
from kernels.paged_decode import decode_config_for, paged_decode


class Bench:
    """Launches over the pool."""

    def __init__(self) -> None:
        self.pool = CellPool()
        self._workspace = make_decode_workspace(
            1 << 17, num_counters=1 << 14, head_dim=HEAD_DIM, device="cuda"
        )

    def launches(
        self, case: Case, config: DecodeConfig | None = None, *, is_dependent: bool = False
    ) -> list[Launch]:
        """Return our launches: without a configuration, of rows in an order, as decode steps have them."""
        lanes = torch.arange(case.num_rows, dtype=torch.int32, device="cuda")
        seq_lens = torch.full_like(lanes, case.context_len)
        q_BHD = torch.randn(case.num_rows, HEADS, HEAD_DIM, device="cuda").bfloat16()
        out, caches, scale = torch.empty_like(q_BHD), self.pool.caches(case.block_size), HEAD_DIM**-0.5
        options: dict[str, Any] = {
            "workspace": self._workspace,
            "config": config,
            "is_dependent": is_dependent,
            "order_B": lanes if config is None else None,
        }
        return [
            lambda table=table: paged_decode(  # type: ignore[misc]
                q_BHD, *caches, table, lanes, seq_lens, scale, out=out, **options
            )
            for table in self.pool.tables(case)
        ]

    def flash_launches(self, case: Case) -> list[Launch]:
        """Return flash-attn's launches; none where it cannot."""
        try:
            from flash_attn import flash_attn_with_kvcache  # noqa: PLC0415
        except ImportError:
            return []
        if case.block_size % 256:
            return []
        q_B1HD = torch.randn(case.num_rows, 1, HEADS, HEAD_DIM, device="cuda").bfloat16()
        seq_lens = torch.full((case.num_rows,), case.context_len, dtype=torch.int32, device="cuda")
        caches = self.pool.caches(case.block_size)
        return [
            lambda table=table: flash_attn_with_kvcache(  # type: ignore[misc]
                q_B1HD, *caches, cache_seqlens=seq_lens, block_table=table
            )
            for table in self.pool.tables(case)
        ]


def candidates(num_rows: int) -> Iterator[DecodeConfig]:
    """Yield configurations worth a try for so many rows."""
    splits = (1, 2, 4) if num_rows >= 128 else (2, 4, 8) if num_rows >= 32 else (4, 8, 16, 32)
    for num_splits in splits:
        for tile_size in (32, 64, 128) if num_rows < 32 else (64, 128):
            for num_warps, num_stages in ((4, 2), (4, 3), (4, 4), (4, 5), (8, 3)):
                yield DecodeConfig(
                    num_splits=num_splits, tile_size=tile_size, num_warps=num_warps, num_stages=num_stages
                )


def tell(case: Case, shape: str, *, microseconds: float, ceiling: float, more: str = "") -> None:
    """Print one line of the table."""
    rate = case.num_bytes / microseconds / 1e3
    print(
        f"{case.num_rows:5d} {case.context_len:7d} {case.block_size:6d}  {shape:15s}"
        f"{microseconds:9.2f} {rate:8.0f} {100 * rate / ceiling:6.1f} {more}",
        flush=True,
    )


def describe(config: DecodeConfig) -> str:
    """Return a configuration in a column's width."""
    return f"{config.num_splits:2d} x{config.tile_size:4d} w{config.num_warps} s{config.num_stages}"


def run_chosen(bench: Bench, case: Case, *, ceiling: float) -> None:
    """Time what a decode step launches, the same launched early, and flash-attn; and what the first takes."""
    max_context_len = WIDEST_CONTEXT // case.block_size * case.block_size
    cache = bench.pool.caches(case.block_size)[0]
    config = decode_config_for(case.num_rows, max_context_len, cache_NSKD=cache, is_ordered=True)
    is_hopper = config.num_splits == 1 and can_use_hopper_decode(cache, case.num_rows, num_heads=HEADS)
    launches = bench.launches(case)
    alone = graph_microseconds(launches)
    early = graph_microseconds(bench.launches(case, is_dependent=True))
    flash = bench.flash_launches(case)
    more = f"{early:9.2f} {graph_millijoules(launches):6.1f}"
    more += f"{graph_microseconds(flash):9.2f}" if flash else ""
    tell(case, "hopper" if is_hopper else describe(config), microseconds=alone, ceiling=ceiling, more=more)


def run_candidates(bench: Bench, case: Case, *, ceiling: float) -> None:
    """Time all candidates and print the five best."""
    times = []
    for config in candidates(case.num_rows):
        launches = bench.launches(case, config)
        try:
            times.append((graph_microseconds(launches, num_replays=5), config))
        except triton.OutOfResources:  # more shared memory than there is
            continue
    for microseconds, config in sorted(times, key=lambda pair: pair[0])[:5]:
        tell(case, describe(config), microseconds=microseconds, ceiling=ceiling)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time paged decode attention.")
    parser.add_argument("--tune", action="store_true", help="try many configurations, print the best")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256, 1024])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 850, 4096])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    ceiling, bench = read_bandwidth(), Bench()
    print(f"{describe_card()}; read bandwidth {ceiling:.0f} GB/s")
    print(" rows context  block  splits x tile        µs     GB/s  share% early µs     mJ  flash-attn µs")
    for block_size in options.block_sizes:
        for num_rows in options.rows:
            for context_len in options.contexts:
                case = Case(num_rows=num_rows, context_len=context_len, block_size=block_size)
                (run_candidates if options.tune else run_chosen)(bench, case, ceiling=ceiling)


if __name__ == "__main__":
    main()
