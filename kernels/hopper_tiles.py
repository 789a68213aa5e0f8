"""How hopper_projection cuts a projection into programs. Knows nothing about what they compute."""

from dataclasses import dataclass, replace

from kernels.gpu import BARRIER_BYTES
from kernels.tiled_config import MOST_SPLIT_OUTPUTS, is_large_weight

MOST_ROWS = 256
"""Above, cuBLAS is as fast."""
MOST_SPLITS = 4
MIN_PROGRAMS = 64
"""Fewer, on an H200's 132 multiprocessors, have not been measured."""
MOST_CHUNKS = 48
"""Of a program's inputs: its loop over them is written out."""
DEFAULT_SHARED_BYTES = 48 << 10
"""That a program has unless more is asked for."""
HEAD_DIM = 128
"""Of heads that hopper_heads is for: a tile holds one."""
SUM_BARRIER_BYTES = 1024
"""What kernels/cluster_sum.py declares beside the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperTile:
    """One launch's shape. All are powers of two but the stages."""

    block_rows: int
    """64, or a multiple; if swapped 16, or a multiple."""
    block_outputs: int
    """If gated: of gates, and as many of ups. At least 32 where squares are left."""
    block_inputs: int
    num_splits: int
    """Programs of a cluster, which share the inputs of one tile."""
    row_stages: int
    """Buffers of rows."""
    weight_stages: int
    """Buffers of weights, filled before the kernel in front has ended."""
    is_swapped: bool = False
    """Outputs are the larger side of a tensor core's product, of 64 or more, and rows the other one."""
    num_warps: int = 4
    is_early: bool = True
    """The kernel behind may start with this one, and not only when this one has asked for its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """The tiles of up to so many rows."""

    most_rows: int
    wide: HopperTile
    """Of many outputs, such as qkv's."""
    short: HopperTile
    """Of few outputs and inputs, such as the attention output's."""
    long: HopperTile
    """Of few outputs and many inputs, such as down's."""
    gated: HopperTile


def _tile(
    blocks: tuple[int, int, int],
    stages: tuple[int, int],
    num_splits: int = 1,
    *,
    is_swapped: bool = False,
    num_warps: int = 4,
    is_early: bool = True,
) -> HopperTile:
    block_rows, block_outputs, block_inputs = blocks
    return HopperTile(
        block_rows=block_rows,
        block_outputs=block_outputs,
        block_inputs=block_inputs,
        num_splits=num_splits,
        row_stages=stages[0],
        weight_stages=stages[1],
        is_swapped=is_swapped,
        num_warps=num_warps,
        is_early=is_early,
    )


# Best by single changes in a chain of a layer's four projections of Qwen3-0.6B, bf16, on an H200, us: 11.5,
# 12.9, 17.3, 21.7, 23.6, 26.4, 24.9 and 27.6 (benchmarks/results/step_loop_h200_202611.md); of 33 to 96 and
# of 129 to 192 rows in a layer with its attention. A multiprocessor has to have room for programs of two
# kernels in a row, unless the first one leaves others free: with 8 KB more, those of a cluster may all start
# a kernel late.
_TABLE = (
    _Tiles(
        most_rows=16,
        wide=_tile((16, 64, 128), (8, 8), is_swapped=True),
        short=_tile((16, 64, 128), (4, 4), 4, is_swapped=True),
        long=_tile((16, 64, 128), (6, 6), 4, is_swapped=True),
        gated=_tile((16, 32, 128), (4, 4), 2, is_swapped=True),
    ),
    _Tiles(
        most_rows=32,
        wide=_tile((32, 64, 128), (8, 8), is_swapped=True),
        short=_tile((64, 64, 128), (4, 4), 4),
        long=_tile((32, 64, 128), (6, 6), 4, is_swapped=True),
        gated=_tile((32, 64, 128), (4, 4), 2, is_swapped=True),
    ),
    _Tiles(
        most_rows=64,
        wide=_tile((64, 32, 128), (8, 8)),
        short=_tile((64, 64, 128), (4, 4), 4),
        long=_tile((64, 64, 128), (3, 6), 4, is_swapped=True),
        gated=_tile((64, 32, 128), (4, 3)),
    ),
    _Tiles(
        most_rows=96,
        wide=_tile((64, 64, 128), (4, 8), is_early=False),
        short=_tile((32, 64, 128), (4, 4), 4, is_swapped=True),
        long=_tile((32, 64, 128), (4, 4), 4, is_swapped=True),
        gated=_tile((64, 32, 64), (6, 8), is_early=False),
    ),
    _Tiles(
        most_rows=128,
        wide=_tile((64, 64, 128), (4, 8), is_early=False),
        short=_tile((64, 64, 64), (6, 6), 2),
        long=_tile((64, 64, 64), (4, 6), 4),
        gated=_tile((64, 32, 64), (6, 8), is_early=False),
    ),
    _Tiles(
        most_rows=160,
        wide=_tile((64, 64, 64), (6, 6), is_early=False),
        short=_tile((64, 64, 64), (6, 6), 2),
        long=_tile((64, 32, 128), (3, 4), 2),
        gated=_tile((64, 64, 64), (4, 4), is_early=False),
    ),
    _Tiles(
        most_rows=192,
        wide=_tile((64, 64, 64), (6, 6), is_early=False),
        short=_tile((64, 64, 64), (6, 6), 2),
        long=_tile((64, 64, 128), (3, 3), 2),
        gated=_tile((64, 64, 64), (4, 4), is_early=False),
    ),
    _Tiles(
        most_rows=MOST_ROWS,
        wide=_tile((64, 64, 64), (6, 6), is_early=False),
        short=_tile((64, 64, 64), (6, 6), 2),
        long=_tile((64, 64, 128), (3, 3), 2),
        gated=_tile((64, 64, 64), (4, 4)),
    ),
)

# By the most rows, of QKV with all that attention needs: best of 9 to 14 each in a layer of Qwen3-0.6B with
# its attention, bf16, lengths of nano256's own, on an H200: 0.7 to 1.7 us less than by qkv_store_kernel up to
# 64 rows, 0 to 1.6 up to 128, 1.5 to 2.0 above. With eight warps, which halve the instructions behind the
# product, another 0.3 to 0.6 up to 128 rows and 0.3 on average above, nothing up to 64; output and down take
# 0.2 to 1.3 more with them, gates 0.2 to 1.1 (benchmarks/results/step_loop_h200_202611.md).
_HEAD_TILES = (
    (64, _tile((32, HEAD_DIM, 64), (5, 5), 2, is_swapped=True)),
    (128, _tile((64, HEAD_DIM, 64), (4, 3), 2, num_warps=8)),
    (MOST_ROWS, _tile((64, HEAD_DIM, 64), (4, 5), num_warps=8, is_early=False)),
)


def choose_hopper_tile(
    num_outputs: int, num_inputs: int, *, num_rows: int, is_gated: bool = False
) -> HopperTile | None:
    """Return the launch's shape, or None where hopper_projection is not for such sizes.

    Args:
        num_outputs: of the result, so half of the weight's rows if gated.
        num_inputs: of the weight.
        num_rows: of x.
        is_gated: whether gates and ups are multiplied.
    """
    if num_rows > MOST_ROWS or is_large_weight(num_outputs * (1 + is_gated), num_inputs):
        return None
    tiles = next(tiles for tiles in _TABLE if num_rows <= tiles.most_rows)
    if is_gated:
        tile = tiles.gated
    elif num_outputs > MOST_SPLIT_OUTPUTS:
        tile = tiles.wide
    else:
        tile = tiles.short if num_inputs <= MOST_SPLIT_OUTPUTS else tiles.long
    num_tiles = -(-num_rows // tile.block_rows) * (num_outputs // tile.block_outputs)
    while num_tiles * tile.num_splits < MIN_PROGRAMS and tile.num_splits < MOST_SPLITS:
        tile = replace(tile, num_splits=2 * tile.num_splits)
    can_start = _can_start(tile, num_outputs, num_inputs, is_gated=is_gated)
    return tile if can_start and num_tiles * tile.num_splits >= MIN_PROGRAMS else None


def choose_head_tile(num_outputs: int, num_inputs: int, *, num_rows: int) -> HopperTile | None:
    """Return the shape of a launch of hopper_heads; arguments and None as choose_hopper_tile's."""
    if num_rows > MOST_ROWS or is_large_weight(num_outputs, num_inputs):
        return None
    tile = next(tile for most_rows, tile in _HEAD_TILES if num_rows <= most_rows)
    return tile if _can_start(tile, num_outputs, num_inputs, is_gated=False) else None


def _can_start(tile: HopperTile, num_outputs: int, num_inputs: int, *, is_gated: bool) -> bool:
    num_chunks, rest = divmod(num_inputs, tile.num_splits * tile.block_inputs)
    fits = rest == 0 and num_chunks <= MOST_CHUNKS and num_outputs % tile.block_outputs == 0
    return fits and has_shared_memory(tile, num_chunks, is_gated=is_gated)


def num_buffers(tile: HopperTile, num_chunks: int) -> tuple[int, int]:
    """Tell how many buffers of rows, and of weights, a program of so many chunks of inputs has."""
    return min(tile.row_stages, num_chunks), min(tile.weight_stages, num_chunks)


def has_shared_memory(tile: HopperTile, num_chunks: int, *, is_gated: bool) -> bool:
    """Tell whether a program gets the shared memory it needs.

    Triton 3.6 asks for more than DEFAULT_SHARED_BYTES where buffers pass that. What kernels/cluster_sum.py
    declares does not count there: if only both together pass it, the launch fails.
    """
    num_columns = tile.block_outputs * (1 + is_gated)
    row_buffers, weight_buffers = num_buffers(tile, num_chunks)
    buffer_bytes = (row_buffers * tile.block_rows + weight_buffers * num_columns) * tile.block_inputs * 2
    if tile.num_splits == 1 or buffer_bytes >= DEFAULT_SHARED_BYTES:
        return True
    sum_bytes = SUM_BARRIER_BYTES + tile.block_rows * num_columns * 4
    return buffer_bytes + BARRIER_BYTES + sum_bytes <= DEFAULT_SHARED_BYTES
