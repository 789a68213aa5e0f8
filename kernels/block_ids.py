"""What the paged attention kernels share on the device: a tile's block ids.

Knows nothing about K and V.
"""

import triton
import triton.language as tl


@triton.jit
def load_block_ids(table_ptr, tile_start, end, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Return the block id of a tile, or of each of its cells where it may lie in several; 0 past the end.

    Kernels load them one tile ahead: the loads of K and V wait for them.
    """
    if BLOCK_SIZE % TILE == 0:
        index = tile_start // BLOCK_SIZE
        is_in = tile_start < end
    else:
        index = (tile_start + tl.arange(0, TILE)).to(tl.uint32) // BLOCK_SIZE
        is_in = tile_start + tl.arange(0, TILE) < end
    return tl.load(table_ptr + index, mask=is_in, other=0)
