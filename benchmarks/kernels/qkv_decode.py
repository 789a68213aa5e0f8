"""Norms, RoPE, KV store and decode attention in one launch, beside the two launches that it replaces.

    python benchmarks/kernels/qkv_decode.py                    the chosen configurations
    python benchmarks/kernels/qkv_decode.py --tune --rows 8    many of them, the best five

Qwen3-0.6B's heads; launches depend on each other as a captured step's do, and each reads blocks of its
own, scattered over a large pool. Shares are of the read bandwidth, counting K and V. Knows nothing about
the model around it.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_timing import Launch, describe_card, graph_microseconds, read_bandwidth
from benchmarks.kernels.paged_decode import describe
from benchmarks.paged_pool import HEAD_DIM, HEADS, KV_HEADS, WIDEST_CONTEXT, Case, CellPool
from kernels.decode_config import DecodeConfig, make_decode_workspace
from kernels.paged_decode import paged_decode
from kernels.qk_norm_rope import qk_norm_rope_store
from kernels.qkv_decode import qkv_decode, qkv_decode_config_for

EPS, SCALE = 1e-6, HEAD_DIM**-0.5


class Bench:
    """Launches over the pool."""

    def __init__(self) -> None:
        self.pool = CellPool()
        self._workspace = make_decode_workspace(
            1 << 17, num_counters=1 << 14, head_dim=HEAD_DIM, device="cuda"
        )
        self._cos_sin_PD = torch.randn(WIDEST_CONTEXT, HEAD_DIM, device="cuda")
        self._norms_2D = torch.randn(2, HEAD_DIM, device="cuda").bfloat16()

    def launches(self, case: Case, config: DecodeConfig | None) -> tuple[list[Launch], list[Launch]]:
        """Return launches of one kernel, with this or the chosen configuration, and pairs of two."""
        lanes = torch.arange(case.num_rows, dtype=torch.int32, device="cuda")
        seq_lens = torch.full_like(lanes, case.context_len)
        qkv_BX = torch.randn(case.num_rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device="cuda").bfloat16()
        q_BHD, out = torch.empty(2, case.num_rows, HEADS, HEAD_DIM, device="cuda").bfloat16()
        caches, workspace = self.pool.caches(case.block_size), self._workspace
        norms = [self._cos_sin_PD, self._norms_2D[0], self._norms_2D[1], EPS]
        positions, (last_column, last_cell) = seq_lens - 1, divmod(case.context_len - 1, case.block_size)

        def one(table: torch.Tensor, slots: torch.Tensor) -> None:
            arguments: list[Any] = [qkv_BX, *norms, *caches, slots, table, lanes, seq_lens, SCALE]
            qkv_decode(*arguments, out=out, workspace=workspace, config=config, is_dependent=True)

        def two(table: torch.Tensor, slots: torch.Tensor) -> None:
            arguments: list[Any] = [qkv_BX, positions, *norms, *caches, slots, HEADS, KV_HEADS, q_BHD]
            qk_norm_rope_store(*arguments, is_dependent=True)
            arguments = [q_BHD, *caches, table, lanes, seq_lens, SCALE]
            paged_decode(*arguments, order_B=lanes, out=out, workspace=workspace, is_dependent=True)

        tables = self.pool.tables(case)
        slots = [table[:, last_column].long() * case.block_size + last_cell for table in tables]
        pairs = list(zip(tables, slots, strict=True))
        return [partial(one, *pair) for pair in pairs], [partial(two, *pair) for pair in pairs]


def candidates(num_rows: int) -> Iterator[DecodeConfig]:
    """Yield configurations worth a try for so many rows."""
    splits = (1, 2) if num_rows > 32 else (2, 4, 8) if num_rows > 4 else (8, 16, 32)
    for num_splits in splits:
        for tile_size, num_warps, num_stages in ((16, 1, 4), (32, 2, 4), (32, 4, 3), (64, 4, 3), (64, 4, 4)):
            for least_cells in (64, 128, 256, 512) if num_splits > 1 else (64,):
                yield DecodeConfig(
                    num_splits=num_splits,
                    tile_size=tile_size,
                    num_warps=num_warps,
                    num_stages=num_stages,
                    min_split_tiles=least_cells // tile_size,
                )


def tell(case: Case, config: DecodeConfig, *, one: float, two: float, ceiling: float) -> None:
    """Print one line of the table."""
    share = 100 * case.num_bytes / one / 1e3 / ceiling
    least_cells = config.min_split_tiles * config.tile_size
    print(
        f"{case.num_rows:5d} {case.context_len:7d}  {describe(config):15s} {least_cells:5d} "
        f"{one:9.2f} {two:9.2f} {share:7.1f}",
        flush=True,
    )


def run(bench: Bench, case: Case, *, ceiling: float, tunes: bool) -> None:
    """Time the chosen configuration, or all candidates and print the five best."""
    chosen = qkv_decode_config_for(
        case.num_rows, WIDEST_CONTEXT, cache_NSKD=bench.pool.caches(case.block_size)[0]
    )
    two, times = graph_microseconds(bench.launches(case, None)[1]), []
    for config in candidates(case.num_rows) if tunes else (chosen,):
        times.append((graph_microseconds(bench.launches(case, config)[0], num_replays=5), config))
    for one, config in sorted(times, key=lambda pair: pair[0])[:5]:
        tell(case, config, one=one, two=two, ceiling=ceiling)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time decode attention from the QKV projection on.")
    parser.add_argument("--tune", action="store_true", help="try many configurations, print the best")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[384, 3000])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    ceiling, bench = read_bandwidth(), Bench()
    print(f"{describe_card()}; read bandwidth {ceiling:.0f} GB/s")
    print(" rows context  splits x tile   least    one µs    two µs  share%")
    for num_rows in options.rows:
        for context_len in options.contexts:
            case = Case(num_rows=num_rows, context_len=context_len, block_size=options.block_size)
            run(bench, case, ceiling=ceiling, tunes=options.tune)


if __name__ == "__main__":
    main()
