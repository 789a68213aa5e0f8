"""How a tiled projection is cut into programs, and the memory in which they meet.

Chosen on the host by what a captured graph fixes: rows and the weight's shape. Knows nothing about
what the kernel computes.

Shapes: X numbers in a flat buffer.
"""

from dataclasses import dataclass, replace

import torch

from kernels.gpu import most_stages

MAX_TILES = 512
"""Of a launch whose inputs are split."""
MAX_SPLIT_NUMBERS = 1 << 20
"""Of all sums that the splits of one launch leave, where choose_projection_tile chooses."""
MOST_SPLIT_OUTPUTS = 2048
"""More outputs make enough programs without splits, or with fewer, unless the weight is large."""
LARGE_WEIGHT = 8 << 20
"""Numbers: 16 MiB in bfloat16, more than any of a layer of Qwen3-0.6B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionTile:
    """One launch's shape. Blocks are powers of two, at least 16."""

    block_rows: int
    block_outputs: int
    """If gated: of gates, and as many of ups."""
    block_inputs: int
    num_warps: int = 4
    num_stages: int = 4
    num_splits: int = 1
    """Programs that share the inputs of one tile."""
    is_swapped: bool = False
    """Outputs are the larger side of a tensor core's product, of 64, and rows the other one."""
    is_paired: bool = False
    """If gated and swapped, gates and ups are one side of one product, 32 of each where tensor cores take 64,
    so that there are more programs; where the copy engine copies."""
    most_ahead: int = 1 << 20
    """Most inputs of a tile whose weights the L2 cache is to read while the kernel in front runs."""
    is_early: bool = True
    """The kernel behind may start with this one; else when the kernels in front have ended, so that what it
    reads ahead is not in the way of this one's rows."""
    is_tma: bool = True
    """Tiles are copied by the copy engine, where rows are aligned for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionWorkspace:
    """Where programs leave what others need. Launches in stream order may share one."""

    partial_X: torch.Tensor
    """float32: the splits' sums."""
    counters_X: torch.Tensor
    """int32, all 0 between launches: the last split puts its own back."""


def make_projection_workspace(
    *, device: torch.device | str, num_numbers: int = MAX_SPLIT_NUMBERS
) -> ProjectionWorkspace:
    """Allocate a workspace for splits of so many numbers in all."""
    return ProjectionWorkspace(
        partial_X=torch.empty(num_numbers, dtype=torch.float32, device=device),
        counters_X=torch.zeros(MAX_TILES, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """The tiles of up to so many rows."""

    most_rows: int
    wide: ProjectionTile
    """Of many outputs, such as qkv's."""
    short: ProjectionTile
    """Of few outputs and inputs, such as the attention output's."""
    long: ProjectionTile
    """Of few outputs and many inputs, such as down's."""
    gated: ProjectionTile


def _tile(
    blocks: tuple[int, int, int],
    num_stages: int,
    num_splits: int = 1,
    *,
    num_warps: int = 4,
    is_swapped: bool = False,
    most_ahead: int = 1 << 20,
    is_early: bool = True,
) -> ProjectionTile:
    block_rows, block_outputs, block_inputs = blocks
    return ProjectionTile(
        block_rows=block_rows,
        block_outputs=block_outputs,
        block_inputs=block_inputs,
        num_warps=num_warps,
        num_stages=num_stages,
        num_splits=num_splits,
        is_swapped=is_swapped,
        most_ahead=most_ahead,
        is_early=is_early,
    )


# Best of some 200 in a chain of a layer's four projections of Qwen3-0.6B, bf16, on an H200.
_TABLE = (
    _Tiles(
        most_rows=16,
        wide=_tile((16, 64, 128), 4, is_swapped=True),
        short=_tile((16, 32, 256), 3, 2),
        long=_tile((16, 32, 256), 3, 4),
        gated=_tile((16, 64, 128), 4, is_swapped=True),
    ),
    _Tiles(
        most_rows=32,
        wide=_tile((32, 32, 256), 5),
        short=_tile((32, 32, 256), 5),
        long=_tile((32, 32, 256), 3, 4),
        gated=_tile((32, 64, 128), 4, is_swapped=True),
    ),
    _Tiles(
        most_rows=64,
        wide=_tile((64, 32, 128), 5, is_early=False),
        short=_tile((64, 32, 128), 4, 4, is_early=False),
        long=_tile((64, 32, 128), 4, 4, is_early=False),
        gated=_tile((64, 32, 128), 4, is_early=False),
    ),
    _Tiles(
        most_rows=128,
        wide=_tile((64, 64, 128), 4),
        short=_tile((64, 64, 128), 4, 4),
        long=_tile((64, 32, 128), 4, 2),
        gated=_tile((64, 32, 128), 3),
    ),
    _Tiles(
        most_rows=256,
        wide=_tile((64, 64, 64), 5),
        short=_tile((64, 32, 128), 4, 2),
        long=_tile((64, 32, 128), 4, 2),
        gated=_tile((128, 64, 64), 4, num_warps=8, is_swapped=True),
    ),
)
_MORE_ROWS = _Tiles(
    most_rows=1 << 30,
    wide=_tile((128, 128, 64), 4, num_warps=8),
    short=_tile((64, 64, 64), 5),
    long=_tile((64, 64, 64), 5),
    gated=_tile((128, 128, 64), 3, num_warps=8),
)
MOST_ROWS_OF_LARGE = 32
"""Of a large weight: with more cuBLAS wins (benchmarks/results/tensor_parallel_h200x2_202611.md)."""
# Tiles of a large weight, of up to that many rows. us at 32 rows of 8B shared by two H200s: qkv 11.4, output
# 8.1, down 17.0, gate_up 27.5, by tiles of 64 gates 30.6; with the tiles above 13.8, 9.2, not timed, 39.6; by
# cuBLAS with its norm or gate 13.4, 7.7, 18.6, 32.5. Read ahead as a whole, such a weight drives out of the
# cache what is not used yet: gate_up 40.0, down 19.0.
_LARGE = _tile((32, 64, 256), 3, is_swapped=True, most_ahead=128)
_LARGE_GATED = _tile((32, 64, 128), 4, is_swapped=True, most_ahead=128)
_LARGE_PAIRED = replace(_LARGE_GATED, block_outputs=32, num_stages=3, is_paired=True)
_LARGE_PAIRED_16 = replace(_LARGE_PAIRED, block_rows=16, num_stages=4)
"""Of up to 16 rows: 26.7 us, by the kernels of few rows 46.8."""
MAX_PAIRED_TILES = 132
"""Of 64 gates: with fewer than an H200 has multiprocessors, tiles of 32 keep more of them busy."""
MIN_SPLIT_INPUTS = 4096
"""A large weight of fewer inputs is not split: output of two ranks takes 8.8 us in two."""
MAX_SPLIT_TILES = 66
"""Two programs a tile, one on each of an H200's multiprocessors."""


def is_large_weight(num_outputs: int, num_inputs: int) -> bool:
    """Tell whether a weight of so many rows, gates and ups counted, has ways of its own."""
    return num_outputs * num_inputs >= LARGE_WEIGHT


def _large_tile(num_outputs: int, num_inputs: int, *, num_rows: int, is_gated: bool) -> ProjectionTile:
    has_few_rows = num_rows <= 16
    if is_gated and num_outputs < MAX_PAIRED_TILES * _LARGE_GATED.block_outputs:
        return _LARGE_PAIRED_16 if has_few_rows else _LARGE_PAIRED
    tile = _LARGE_GATED if is_gated else _LARGE
    is_split = num_inputs >= MIN_SPLIT_INPUTS and num_outputs <= MAX_SPLIT_TILES * tile.block_outputs
    return replace(
        tile,
        block_rows=16 if has_few_rows else tile.block_rows,
        num_splits=2 if is_split and not is_gated else 1,
    )


def fit_stages(
    tile: ProjectionTile, device: torch.device, *, is_gated: bool = False, itemsize_bytes: int
) -> ProjectionTile:
    """Return the tile with no more stages than a program on this device has room for."""
    num_numbers = (tile.block_rows + tile.block_outputs * (1 + is_gated)) * tile.block_inputs
    stages = most_stages(device, stage_bytes=num_numbers * itemsize_bytes)
    return replace(tile, num_stages=min(tile.num_stages, stages))


def choose_projection_tile(
    num_outputs: int,
    num_inputs: int,
    *,
    num_rows: int,
    is_gated: bool = False,
    can_split: bool = True,
    itemsize_bytes: int = 2,
) -> ProjectionTile:
    """Return the launch's shape: what measured best at the nearest of Qwen3-0.6B's, or of 8B's large ones.

    Args:
        num_outputs: of the result, so half of the weight's rows if gated.
        num_inputs: of the weight.
        num_rows: of x.
        is_gated: whether gates and ups are multiplied.
        can_split: whether programs may share the inputs of a tile.
        itemsize_bytes: of one weight: tiles of more than two bytes are shorter.
    """
    tiles = next((tiles for tiles in _TABLE if num_rows <= tiles.most_rows), _MORE_ROWS)
    if is_large_weight(num_outputs * (1 + is_gated), num_inputs) and num_rows <= MOST_ROWS_OF_LARGE:
        tile = _large_tile(num_outputs, num_inputs, num_rows=num_rows, is_gated=is_gated)
    elif is_gated:
        tile = tiles.gated
    elif num_outputs > MOST_SPLIT_OUTPUTS:
        tile = tiles.wide
    else:
        tile = tiles.short if num_inputs <= 2048 else tiles.long
    return replace(
        tile,
        num_splits=tile.num_splits if can_split else 1,
        block_inputs=tile.block_inputs // 2 if itemsize_bytes > 2 else tile.block_inputs,
    )
