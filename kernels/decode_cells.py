"""What decode attention's kernels do with the cells of a context: find them, load them, attend to them.

Attention is an online softmax. Its state is the weighted sum of V, the sum of the weights, and the
exponent that both are relative to. Knows nothing about rows, splits or where queries come from.

Shapes: G heads of one KV head, padded to 16, D head dim (padded), P cells of a tile.
Source: FlashAttention (Dao et al., 2022) on paged tables (Kwon et al., 2023).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids

# Size 0 fetches nothing.
PREFETCH: tl.constexpr = tl.constexpr(
    "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)


@triton.jit
def tile_offsets(
    block, tile_start, end, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Return where a tile's numbers lie in a cache, and which may be loaded: cells past the end may hold NaN."""
    d, p = tl.arange(0, DIM_PADDED), tl.arange(0, TILE)
    position_P = tile_start + p
    if BLOCK_SIZE % TILE == 0:
        cell_P = block.to(tl.int64) * BLOCK_SIZE + tile_start % BLOCK_SIZE + p
    else:
        cell_P = block.to(tl.int64) * BLOCK_SIZE + position_P % BLOCK_SIZE
    offset_PD = (cell_P * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
    mask_PD = (position_P < end)[:, None]
    if DIM_PADDED != HEAD_DIM:
        mask_PD = mask_PD & (d < HEAD_DIM)[None, :]
    return offset_PD, mask_PD


@triton.jit
def weigh_tile(q_GD, key_PD, best_G, tile_start, end, scale_log2, TILE: tl.constexpr):
    """Return a tile's weights, the new exponent, and the factor that takes the state's sums to it."""
    is_in_P = tile_start + tl.arange(0, TILE) < end
    score_GP = tl.dot(q_GD, tl.trans(key_PD), input_precision="ieee") * scale_log2
    score_GP = tl.where(is_in_P[None, :], score_GP, float("-inf"))
    new_best_G = tl.maximum(best_G, tl.max(score_GP, 1))
    return tl.exp2(score_GP - new_best_G[:, None]), new_best_G, tl.exp2(best_G - new_best_G)


@triton.jit
def add_tile(acc_GD, sum_G, weight_GP, value_PD, factor_G):
    """Return the state's sums with a tile's added."""
    acc_GD = acc_GD * factor_G[:, None]
    acc_GD += tl.dot(weight_GP.to(value_PD.dtype), value_PD, input_precision="ieee")
    return acc_GD, sum_G * factor_G + tl.sum(weight_GP, 1)


@triton.jit
def attend_cells(
    q_GD, acc_GD, sum_G, best_G, key_ptr, value_ptr, table_ptr, block, start, end, scale_log2, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Return the state with cells [start, end) added; block is what load_block_ids gives for the first tile."""
    for tile_start in tl.range(start, end, TILE, num_stages=NUM_STAGES):
        next_block = load_block_ids(table_ptr, tile_start + TILE, end, BLOCK_SIZE, TILE)
        offset_PD, mask_PD = tile_offsets(
            block, tile_start, end, kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, q_GD.shape[1], TILE
        )
        key_PD = tl.load(key_ptr + offset_PD, mask=mask_PD, other=0.0)
        weight_GP, best_G, factor_G = weigh_tile(q_GD, key_PD, best_G, tile_start, end, scale_log2, TILE)
        value_PD = tl.load(value_ptr + offset_PD, mask=mask_PD, other=0.0)
        acc_GD, sum_G = add_tile(acc_GD, sum_G, weight_GP, value_PD, factor_G)
        block = next_block
    return acc_GD, sum_G, best_G


@triton.jit
def load_tiles(
    key_ptr, value_ptr, table_ptr, start, end, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    TILE: tl.constexpr, NUM_TILES: tl.constexpr,
):  # fmt: skip
    """Return K and V of the first tiles in registers: all loads are on their way before any is used."""
    keys, values = tl.tuple([]), tl.tuple([])
    for index in tl.static_range(NUM_TILES):
        tile_start = start + index * TILE
        block = load_block_ids(table_ptr, tile_start, end, BLOCK_SIZE, TILE)
        offset_PD, mask_PD = tile_offsets(
            block, tile_start, end, kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, DIM_PADDED, TILE
        )
        # V first: the compiler takes K to tensor cores' layout as soon as it is there, before what follows.
        values = values + tl.tuple([tl.load(value_ptr + offset_PD, mask=mask_PD, other=0.0)])
        keys = keys + tl.tuple([tl.load(key_ptr + offset_PD, mask=mask_PD, other=0.0)])
    return keys, values


@triton.jit
def attend_tiles(
    q_GD, acc_GD, sum_G, best_G, keys, values, start, end, scale_log2,
    TILE: tl.constexpr, NUM_TILES: tl.constexpr,
):  # fmt: skip
    """Return the state with the tiles of load_tiles added. It must not be empty where a tile is."""
    for index in tl.static_range(NUM_TILES):
        tile_start = start + index * TILE
        weight_GP, best_G, factor_G = weigh_tile(
            q_GD, keys[index], best_G, tile_start, end, scale_log2, TILE
        )
        acc_GD, sum_G = add_tile(acc_GD, sum_G, weight_GP, values[index], factor_G)
    return acc_GD, sum_G, best_G


@triton.jit
def prefetch_cells(
    key_ptr, value_ptr, table_ptr, start, end, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_CELLS: tl.constexpr,
):  # fmt: skip
    """Have K and V of so many cells from the start, at most to the end, fetched into the L2 cache."""
    position = start + tl.arange(0, NUM_CELLS)
    is_in = position < end
    block = tl.load(table_ptr + position // BLOCK_SIZE, mask=is_in, other=0)
    cell = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    offset = (cell * NUM_KV_HEADS + kv_head) * HEAD_DIM
    num_bytes = tl.where(is_in, HEAD_DIM * (key_ptr.dtype.element_ty.primitive_bitwidth // 8), 0)
    for index in tl.static_range(2):
        cache_ptr = key_ptr if index == 0 else value_ptr
        tl.inline_asm_elementwise(
            PREFETCH, "=r,l,r", [(cache_ptr + offset).to(tl.int64), num_bytes],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
