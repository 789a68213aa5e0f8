"""How a projection of few rows is cut into programs: what measured best on an H200.

Knows nothing about what the kernels compute.
"""

from dataclasses import dataclass

import triton

from kernels.small_batch_ref import MAX_INPUTS_OF_ONE_ROW, MAX_ROWS
from kernels.tiled_config import is_large_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a projection is cut into programs."""

    num_outputs: int
    """Of one program."""
    num_warps: int
    is_dot: bool
    """By small_batch_dot_kernel."""
    is_swapped: bool = False
    """Tensor cores take 16 outputs and 8 rows at a time, else 8 outputs and 16 rows; only with is_dot."""


def _dot_tile(num_outputs: int, num_warps: int, *, is_swapped: bool = False) -> Tile:
    return Tile(num_outputs=num_outputs, num_warps=num_warps, is_dot=True, is_swapped=is_swapped)


_NARROW = _dot_tile(8, 8)
_SWAPPED_16, _SWAPPED_32 = _dot_tile(16, 8, is_swapped=True), _dot_tile(32, 8, is_swapped=True)
_DOT_TILES = (
    (8, (_SWAPPED_16, _SWAPPED_16, _dot_tile(8, 8, is_swapped=True), _NARROW)),
    (16, (_SWAPPED_32, _dot_tile(16, 16), _NARROW, _NARROW)),
    (MAX_ROWS, (_SWAPPED_32, _dot_tile(16, 8), _dot_tile(16, 16), _dot_tile(16, 16))),
)
"""By the most rows: at up to 1,024 inputs, up to 2,048, up to 3,072, and more. What measured best in a chain
of Qwen3-0.6B's layers, their attention included, in bf16 on an H200."""
_GATED_TILES = (16, 1024, _SWAPPED_16)
"""Of gates and ups, up to so many rows and inputs: 26.8 us a layer at 16 rows, with twice the outputs a
program 27.9."""

_LARGE_TILES = (
    (2048, _SWAPPED_16),
    (8192, Tile(num_outputs=2, num_warps=8, is_dot=False)),
    (MAX_INPUTS_OF_ONE_ROW, Tile(num_outputs=1, num_warps=8, is_dot=False)),
)
"""Of one row and a large weight, by the most inputs. us of Qwen3-8B on an H200: output of one of two ranks
6.1, with the tile of small weights 6.8, qkv 8.1 and 8.6, down 14.1 and tiled 15.7, down of one rank 25.3 and
27.6."""
_LARGE_HEAD_TILE = Tile(num_outputs=4, num_warps=4, is_dot=False)
"""136.7 us a rank of two, with the tile of small weights 147.8."""


def choose_tile(num_outputs: int, num_inputs: int, *, num_rows: int, is_gated: bool = False) -> Tile:
    """Return small programs, so that all of the card reads at once.

    What measured best on an H200 at Qwen3-0.6B's shapes (benchmarks/kernels/small_batch.py --tune).
    """
    is_large = num_outputs >= 32768
    block_i = triton.next_power_of_2(num_inputs)
    # Tensor cores win from 2 rows on: a layer's four take 16.2 us there, without them 17.1.
    if num_rows > (4 if is_large else 1):
        most_rows, most_inputs, gated_tile = _GATED_TILES
        if is_gated and num_rows <= most_rows and num_inputs <= most_inputs:
            return gated_tile
        tiles = next((tiles for most_rows, tiles in _DOT_TILES if num_rows <= most_rows), _DOT_TILES[-1][1])
        return tiles[min((num_inputs - 1) // 1024, 3)]
    if is_large and block_i <= 1024:
        return (
            Tile(num_outputs=16, num_warps=8, is_dot=False)
            if num_rows == 1
            else Tile(num_outputs=4, num_warps=1, is_dot=False)
        )
    if num_rows == 1 and not is_gated and is_large_weight(num_outputs, num_inputs):
        fitting = (tile for most_inputs, tile in _LARGE_TILES if num_inputs <= most_inputs)
        return _LARGE_HEAD_TILE if is_large else next(fitting)
    # 32 to 64 weights a thread.
    num_warps = min(max(block_i // (256 if block_i <= 1024 else 512), 1), 8)
    return Tile(num_outputs=4, num_warps=num_warps, is_dot=False)
