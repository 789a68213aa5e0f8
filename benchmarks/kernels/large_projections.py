"""Projections of Qwen3-8B, one rank's share, by cuBLAS and by the kernels' own choices; tiles to choose from.

    python benchmarks/kernels/large_projections.py [--ranks 2] [--rows 1 32] [--projections down]
    python benchmarks/kernels/large_projections.py --tune      more tiles (some seconds a line, on 16 cores)

Each projection with its norm, gate or sum, started while the one before it runs, over weights in rotation in
one CUDA graph. Tiles that are tried are compiled by many processes first; one that does not fit the card is
left out. "error" is the largest, by the largest result. Knows nothing about attention.
"""

import argparse
import gc
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import rms_norm, silu

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.bandwidth_table import num_input_sets
from benchmarks.decode_chain import EPS, AnyTile, ProjectionSize
from benchmarks.gpu_timing import describe_card, graph_microseconds, read_bandwidth
from benchmarks.make_qwen3 import HEAD_DIM, NUM_KV_HEADS, SHAPES, VOCAB_SIZE
from kernels import small_batch, tiled_projection
from kernels.fused_norm import add_rms_norm
from kernels.row_squares import num_sums, sum_squares
from kernels.silu_mul import silu_mul
from kernels.tiled_config import ProjectionTile, choose_projection_tile, make_projection_workspace

Case = tuple[str, int, int]
"""A projection's name, ranks, rows."""
ROWS = (1, 4, 16, 32, 64, 128, 256)
NAMES = ("qkv", "output", "gate_up", "down", "head")
ADDED = ("output", "down")
MIN_LAUNCHES = 8
SPLIT_NUMBERS = 1 << 24
MAX_SHARED_BYTES = 220 << 10
PROGRAMS = range(96, 401)
"""How many a launch may have where its inputs are split."""
NO_CHOICE = ProjectionTile(block_rows=16, block_outputs=16, block_inputs=16)
BLOCKS: dict[int, tuple[tuple[int, int, int, int, int, bool], ...]] = {
    16: ((16, 64, 128, 4, 4, True), (16, 64, 256, 3, 4, True), (16, 128, 128, 4, 8, True),
         (16, 32, 256, 3, 4, False), (16, 32, 256, 5, 4, False)),
    32: ((32, 64, 128, 4, 4, True), (32, 64, 256, 3, 4, True), (32, 128, 128, 4, 8, True),
         (32, 32, 256, 3, 4, False), (32, 64, 128, 4, 4, False)),
    64: ((64, 64, 128, 3, 4, True), (64, 64, 128, 4, 4, True), (64, 128, 64, 4, 8, True),
         (64, 32, 128, 4, 4, False), (64, 32, 256, 4, 4, False), (64, 64, 128, 3, 4, False),
         (64, 128, 64, 4, 4, False)),
    128: ((128, 64, 64, 4, 4, False), (128, 128, 64, 4, 8, False), (128, 128, 64, 3, 4, False),
          (64, 128, 64, 4, 4, False), (128, 128, 64, 4, 8, True), (128, 256, 64, 3, 8, False)),
    256: ((128, 128, 64, 4, 8, False), (128, 128, 64, 3, 4, False), (128, 256, 64, 3, 8, False),
          (256, 128, 64, 3, 8, False), (128, 64, 64, 4, 4, False), (128, 128, 64, 4, 8, True)),
}  # fmt: skip
"""By the most rows: a block's rows, outputs and inputs, stages, warps, and whether it is swapped."""
FEW_ROWS_TILES = tuple(
    small_batch.Tile(num_outputs=num_outputs, num_warps=num_warps, is_dot=False)
    for num_outputs in (1, 2, 4, 8)
    for num_warps in (2, 4, 8, 16)
) + tuple(
    small_batch.Tile(num_outputs=num_outputs, num_warps=num_warps, is_dot=True, is_swapped=is_swapped)
    for num_outputs, num_warps, is_swapped in ((8, 8, False), (16, 8, True), (16, 16, False), (32, 8, True))
)
"""Of the kernels of few rows, each with all inputs of its outputs."""
MOST_FEW_ROWS = 16


def projection_size(name: str, num_ranks: int) -> ProjectionSize:
    """Return one rank's share of a projection of 8B."""
    shape = SHAPES["8B"]
    hidden, inner = shape["hidden_size"], shape["intermediate_size"] // num_ranks
    heads, kv_heads = shape["num_attention_heads"] // num_ranks, max(NUM_KV_HEADS // num_ranks, 1)
    outputs, inputs = {
        "qkv": ((heads + 2 * kv_heads) * HEAD_DIM, hidden),
        "output": (hidden, heads * HEAD_DIM),
        "gate_up": (inner, hidden),
        "down": (hidden, inner),
        "head": (-(-VOCAB_SIZE // num_ranks), hidden),
    }[name]
    return ProjectionSize(num_outputs=outputs, num_inputs=inputs, num_weights=2 if name == "gate_up" else 1)


class LargeProjection:
    """One projection of some rows: its weights, and memory for what goes in and comes out."""

    def __init__(self, case: Case, *, num_sets: int = 0) -> None:
        name, num_ranks, num_rows = case
        self.name, self.num_rows = name, num_rows
        self.size = size = projection_size(name, num_ranks)

        def rows(num: int) -> torch.Tensor:
            return torch.randn(num_rows, num, device="cuda", dtype=torch.bfloat16)

        shape = (size.num_weights * size.num_outputs, size.num_inputs)
        self.weights = [
            torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(size.num_inputs**-0.5)
            for _ in range(num_sets or num_input_sets(size.num_bytes))
        ]
        self.x, self.out, self._normed = (
            rows(size.num_inputs),
            rows(size.num_outputs),
            rows(size.num_inputs),
        )
        self._gate_up = rows(len(self.weights[0])) if size.num_weights > 1 else self.out
        self._norm = torch.ones(size.num_inputs, device="cuda", dtype=torch.bfloat16)
        num_squared = size.num_outputs if name in ADDED else size.num_inputs
        self._squares = torch.ones(num_rows, num_sums(num_squared), device="cuda")
        if name not in ADDED:
            sum_squares(self.x, out=self._squares)
        self._workspace = make_projection_workspace(device="cuda", num_numbers=SPLIT_NUMBERS)

    def launch(self, tile: AnyTile | None, index: int = 0) -> None:
        """Launch it over one of the weights; without a tile by cuBLAS."""
        weight = self.weights[index % len(self.weights)]
        if tile is None:
            self._launch_separate(weight)
            return
        options: dict[str, Any] = {"is_dependent": True, "tile": tile}
        module: Any = small_batch
        if isinstance(tile, ProjectionTile):
            module, options["squares_RJ"] = tiled_projection, self._squares
            if self.name != "gate_up":
                options["workspace"] = self._workspace
        if self.name in ADDED:
            module.linear_add(self.x, weight, self.out, **options)
            return
        function = module.norm_gate_up_silu if self.name == "gate_up" else module.norm_linear
        # The head's weight is the embedding's, too, so that the norm's is not in it.
        norm = self._norm if self.name == "head" else None
        function(self.x, norm, weight, EPS, self.out, is_normed=True, **options)

    def _launch_separate(self, weight: torch.Tensor) -> None:
        if self.name in ADDED:
            torch.addmm(self.out, self.x, weight.t(), out=self.out)
            return
        add_rms_norm(self.x, None, self._norm, EPS, self._normed, is_dependent=True)
        torch.mm(self._normed, weight.t(), out=self._gate_up)
        if self.name == "gate_up":
            silu_mul(self._gate_up, out=self.out, is_dependent=True)

    def error(self, tile: AnyTile | None) -> float:
        """Return the largest error of one launch, by the largest result."""
        prior, x = self.out.float(), self.x.float()
        if self.name not in ADDED:
            x = rms_norm(x, x.shape[1:], None, EPS)
        expected = x @ self.weights[0].float().t()
        if self.name in ADDED:
            expected += prior
        elif self.name == "gate_up":
            gate, up = expected.chunk(2, -1)
            expected = silu(gate) * up
        self.launch(tile)
        return float((self.out.float() - expected).abs().max() / expected.abs().max())

    def microseconds(self, tile: AnyTile | None) -> float:
        """Return the time of one launch among many."""
        launches = [partial(self.launch, tile, index) for index in range(MIN_LAUNCHES)]
        return graph_microseconds(launches, num_replays=5)


def chosen_tiles(projection: LargeProjection) -> list[AnyTile]:
    """Return what the kernels choose by themselves."""
    size, name, num_rows = projection.size, projection.name, projection.num_rows
    outputs, inputs = size.num_outputs, size.num_inputs
    tiles: list[AnyTile] = [
        choose_projection_tile(
            outputs, inputs, num_rows=num_rows, is_gated=name == "gate_up", can_split=name in ADDED
        )
    ]
    if small_batch.can_fuse(num_rows, outputs * size.num_weights, inputs, itemsize_bytes=2):
        tiles.append(small_batch.choose_tile(outputs, inputs, num_rows=num_rows))
    return tiles


def candidates(case: Case) -> list[AnyTile]:
    """Return tiled ones: blocks, splits, and how much is read ahead; and those of few rows."""
    name, num_ranks, num_rows = case
    size = projection_size(name, num_ranks)
    most_rows = next((most for most in BLOCKS if num_rows <= most), max(BLOCKS))
    tiles: list[AnyTile] = list(FEW_ROWS_TILES) if num_rows <= MOST_FEW_ROWS else []
    for rows, outputs, inputs, num_stages, num_warps, is_swapped in BLOCKS[most_rows]:
        num_tiles = -(-num_rows // rows) * -(-size.num_outputs // outputs)
        num_bytes = 2 * inputs * (rows + size.num_weights * outputs) * num_stages
        if num_bytes > MAX_SHARED_BYTES:
            continue
        can_split = name in ("qkv", *ADDED)
        splits = [num for num in (2, 4) if can_split and num_tiles * num in PROGRAMS]
        tile = replace(NO_CHOICE, block_rows=rows, block_outputs=outputs, block_inputs=inputs)
        tile = replace(tile, num_stages=num_stages, num_warps=num_warps, is_swapped=is_swapped)
        tiles += [
            replace(tile, num_splits=num_splits, most_ahead=most_ahead)
            for num_splits in (1, *splits)
            for most_ahead in (128, 1 << 20)
        ]
        if size.num_weights > 1 and is_swapped:
            paired = replace(tile, block_outputs=outputs // 2, is_paired=True, most_ahead=128)
            tiles += [replace(paired, num_stages=num) for num in (num_stages - 1, num_stages)]
    return tiles


def why_not(case: Case, tile: AnyTile) -> str:
    """Compile and launch a tile, in a process of its own; return why it does not run, or nothing."""
    try:
        LargeProjection(case, num_sets=1).launch(tile)
        torch.cuda.synchronize()
    except Exception as error:
        return str(error) or repr(error)
    return ""


def runnable(tried: dict[Case, list[AnyTile]]) -> dict[Case, list[AnyTile]]:
    """Compile tiles; return those that run, and print why the others do not."""
    jobs = [(case, tile) for case, tiles in tried.items() for tile in tiles]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        reasons = list(pool.map(why_not, *zip(*jobs, strict=True)))
    runs: dict[Case, list[AnyTile]] = {case: [] for case in tried}
    for (case, tile), reason in zip(jobs, reasons, strict=True):
        if reason:
            print(f"left out {case} {tile}: {reason.splitlines()[0]}")
        else:
            runs[case].append(tile)
    return runs


def tell(projection: LargeProjection, tile: AnyTile | None, *, read_rate: float) -> str:
    """Return one tile's figures."""
    error, microseconds = projection.error(tile), projection.microseconds(tile)
    share = projection.size.num_bytes / microseconds / 1e3 / read_rate
    return f"{microseconds:9.2f} µs {100 * share:5.1f} % error {error:.1e} {tile or 'cuBLAS'}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Time projections of Qwen3-8B.")
    parser.add_argument("--tune", action="store_true", help="try tiles")
    parser.add_argument("--ranks", type=int, default=1, help="that share the model")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--projections", choices=NAMES, nargs="+", default=list(NAMES))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    gc.freeze()
    read_rate = read_bandwidth()
    print(f"{describe_card()}; read bandwidth {read_rate:.0f} GB/s; shares of it", flush=True)
    cases = [(name, options.ranks, num_rows) for name in options.projections for num_rows in options.rows]
    tried = runnable({case: candidates(case) for case in cases}) if options.tune else {}
    for case in cases:
        projection = LargeProjection(case)
        print(*case, flush=True)
        for tile in (None, *chosen_tiles(projection)):
            print("  chosen" if tile else "        ", tell(projection, tile, read_rate=read_rate))
        for line in sorted(tell(projection, tile, read_rate=read_rate) for tile in tried.get(case, []))[:5]:
            print("        ", line, flush=True)


if __name__ == "__main__":
    main()
