"""A projection of tens to hundreds of rows to very many outputs on a Hopper GPU, summed up on the way.

What streamed_projection does, which asks here first: for the numbers of rows where this is the faster way. A
norm is not part of it. Knows nothing about models.

Shapes: R rows, I inputs, O outputs.
"""

import sys
from dataclasses import dataclass

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
ITEM_BYTES = 2
OPTIONS = {"num_warps": 4, "maxnreg": 168}  # 12 warps with those that the kernel adds


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTile:
    """One launch's shape."""

    block_rows: int
    num_stages: int
    summed_rows: int
    """Rows that are summed up at once."""
    most_inputs: int = sys.maxsize


# Norm, head and sampler of Qwen3-0.6B in bf16 on an H200, us, streamed or with cuBLAS and so: 64 rows 95 and
# 90, 66: 108 and 97, 96: 117 and 99, 128: 122 and 99, 256: 164 and 154. At 160 and 192 rows cuBLAS takes 132
# and 139, and this some 145, as a product of 256 rows takes as long with fewer. That product is 8 % slower
# than cuBLAS's: of more inputs it would lose.
TILES = {
    range(33, 65): HeadTile(block_rows=64, num_stages=6, summed_rows=64),
    range(65, 129): HeadTile(block_rows=128, num_stages=5, summed_rows=64),
    range(241, 257): HeadTile(block_rows=256, num_stages=3, summed_rows=32, most_inputs=1024),
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
    """Write x @ weight.T, and return it.

    Args:
        x_RI: aligned, as out is.
        weight_OI: one that choose_large_tile takes, of x's dtype.
        out_RO: of x's dtype; rows may be strided by multiples of 16 bytes.
        tile: choose_large_tile's.
        summary: as for streamed_projection; its pieces are of BLOCK_O logits.
        is_dependent: let it start while the kernel before it runs, where the device can.
    """
    num_rows, (num_outputs, num_inputs) = len(x_RI), weight_OI.shape
    assert num_rows <= tile.block_rows
    assert summary is None or summary.piece_size == BLOCK_O
    large_head_kernel[(min(num_outputs // BLOCK_O, num_multiprocessors(x_RI.device)),)](
        describe_tiles(with_rows_behind(x_RI, tile.block_rows), tile.block_rows, BLOCK_I),
        describe_tiles(weight_OI, BLOCK_O, BLOCK_I),
        describe_tiles(out_RO, tile.block_rows, BLOCK_O // NUM_PARTS),
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
