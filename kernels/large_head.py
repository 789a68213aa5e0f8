"""A projection of tens to hundreds of rows to very many outputs on a Hopper GPU, summed up on the way.

What streamed_projection does, which asks here first: for the numbers of rows where this is the faster way. A
norm is not part of it. Knows nothing about models.

Shapes: R rows, I inputs, O outputs.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch

from kernels.dependent_launch import can_depend, launch_options
from kernels.gluon_kernels import describe_tiles, large_head_kernel, runs_gluon
from kernels.gpu import num_multiprocessors
from kernels.logit_summary import LogitSummary, summary_arguments
from kernels.rows_behind import with_rows_behind
from kernels.tiled_projection import is_aligned

BLOCK_O, BLOCK_I = 128, 64
"""A tile's outputs, and inputs of a stage."""
NUM_PARTS = 2
MOST_BLOCKS = 2
"""Of rows, in a tile."""
ITEM_BYTES = 2
OPTIONS = {"num_warps": 4, "maxnreg": 168}  # 12 warps with those that the kernel adds


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTile:
    """One launch's shape."""

    row_blocks: tuple[int, ...]
    """Of one block or two, the larger one first: powers of two."""
    num_stages: int
    summed_rows: int
    """Rows that are summed up at once, at most."""
    most_inputs: int = sys.maxsize

    @property
    def num_rows(self) -> int:
        """Of all blocks."""
        return sum(self.row_blocks)


# Norm, head and sampler of Qwen3-0.6B in bf16 on an H200, us, with cuBLAS and so: 128 rows 134 and 93, 160:
# 143 and 104, 176: 152 and 117, 192: 157 and 119; streamed 64 rows took some 5 more. 256 rows took 145 when
# the sampler still was two launches: 193 and more were not timed with cuBLAS since groups of ids are drawn.
# cuBLAS's product alone is faster, by 4 us at 128 rows, some 7 at 160 and 19 at 192: of more inputs it wins.
TILES = {
    range(33, 65): HeadTile(row_blocks=(64,), num_stages=6, summed_rows=64),
    range(65, 81): HeadTile(row_blocks=(64, 16), num_stages=6, summed_rows=64),
    range(81, 97): HeadTile(row_blocks=(64, 32), num_stages=6, summed_rows=64),
    range(97, 129): HeadTile(row_blocks=(128,), num_stages=5, summed_rows=64),
    range(129, 145): HeadTile(row_blocks=(128, 16), num_stages=5, summed_rows=64, most_inputs=2048),
    range(145, 161): HeadTile(row_blocks=(128, 32), num_stages=5, summed_rows=64, most_inputs=2048),
    range(161, 193): HeadTile(row_blocks=(128, 64), num_stages=4, summed_rows=64, most_inputs=1024),
    range(193, 257): HeadTile(row_blocks=(256,), num_stages=3, summed_rows=64, most_inputs=1024),
}
MOST_STAGES = max(tile.num_stages for tile in TILES.values())


def choose_large_tile(weight_OI: torch.Tensor, num_rows: int) -> HeadTile | None:
    """Return the launch's shape; None: large_head is not for such a weight, its device or the rows."""
    num_outputs, num_inputs = weight_OI.shape
    is_whole = num_outputs % BLOCK_O == num_inputs % BLOCK_I == 0 and num_inputs >= MOST_STAGES * BLOCK_I
    is_plain = weight_OI.is_contiguous() and is_aligned(weight_OI) and weight_OI.itemsize == ITEM_BYTES
    if not is_whole or not is_plain or not runs_gluon(weight_OI.device):
        return None
    tiles = (tile for rows, tile in TILES.items() if num_rows in rows and num_inputs <= tile.most_inputs)
    return next(tiles, None)


def large_head(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    out_RO: torch.Tensor,
    *,
    tile: HeadTile,
    summary: LogitSummary | None,
    is_dependent: bool,
) -> torch.Tensor:
    """Write x @ weight.T, and return it; with a summary, of a row without a limit only what may be drawn.

    Args:
        x_RI: aligned, as out is.
        weight_OI: one that choose_large_tile takes, of x's dtype.
        out_RO: of x's dtype; rows may be strided by multiples of 16 bytes.
        tile: choose_large_tile's.
        summary: as for streamed_projection; its pieces are of BLOCK_O logits.
        is_dependent: let it start while the kernel before it runs, where the device can.
    """
    num_rows, (num_outputs, num_inputs) = len(x_RI), weight_OI.shape
    assert num_rows <= tile.num_rows
    assert summary is None or summary.piece_size == BLOCK_O
    large_head_kernel[(min(num_outputs // BLOCK_O, num_multiprocessors(x_RI.device)),)](
        *_describe_blocks(with_rows_behind(x_RI, tile.num_rows), tile, BLOCK_I),
        describe_tiles(weight_OI, BLOCK_O, BLOCK_I),
        *_describe_blocks(out_RO, tile, BLOCK_O // NUM_PARTS),
        *(out_RO, out_RO.stride(0)),
        *summary_arguments(summary),
        num_rows,
        I=num_inputs,
        O=num_outputs,
        STAGES=tile.num_stages,
        SUB=tile.summed_rows,
        IS_SAMPLED=summary is not None and summary.is_sampled,
        **OPTIONS,
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return out_RO


def _describe_blocks(numbers: torch.Tensor, tile: HeadTile, num_columns: int) -> list[Any]:
    """Return a descriptor of each block of rows, and None for one that is not there."""
    there = [describe_tiles(numbers, block_rows, num_columns) for block_rows in tile.row_blocks]
    return [*there, *[None] * (MOST_BLOCKS - len(there))]
