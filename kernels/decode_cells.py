"""What decode attention's kernels do with the cells of a context: find them, load them, attend to them.

Attention is an online softmax. Its state is the weighted sum of V, the sum of the weights, and the
exponent that both are relative to. Weights are summed by place in their tile, as summing over a tile takes
barriers. Knows nothing about rows, splits or where queries come from.

Shapes: G heads of one KV head (padded), D head dim (padded), P cells of a tile.
Source: FlashAttention (Dao et al., 2022) on paged tables (Kwon et al., 2023).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def head_numbers(HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr):
    """Return which of a head's numbers is where, and where there is one.

    Halves, which RoPE takes in pairs, are padded each.
    """
    d = tl.arange(0, DIM_PADDED)
    is_in = d < DIM_PADDED
    if DIM_PADDED != HEAD_DIM:
        h = d % (DIM_PADDED // 2)
        is_in = h < HEAD_DIM // 2
        d = d // (DIM_PADDED // 2) * (HEAD_DIM // 2) + h
    return d, is_in


@triton.jit
def place_cells(
    kv_head, BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Return where a tile's numbers lie, but for what shift_tile tells: the same for all tiles."""
    d, _ = head_numbers(HEAD_DIM, DIM_PADDED)
    p = tl.arange(0, TILE)
    if BLOCK_SIZE % TILE == 0:
        cell_P = p
    elif TILE % BLOCK_SIZE == 0:
        cell_P = p % BLOCK_SIZE
    else:
        cell_P = p * 0
    return (cell_P * NUM_KV_HEADS + kv_head.to(tl.int32))[:, None] * HEAD_DIM + d[None, :]


@triton.jit
def shift_tile(
    block, tile_start, BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Return how far a tile, which starts at a multiple of TILE, lies behind where place_cells has it.

    int64: it passes 2**31 in a large cache.
    """
    CELL: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    if BLOCK_SIZE % TILE == 0:
        shift = block.to(tl.int64) * (BLOCK_SIZE * CELL) + tile_start % BLOCK_SIZE * CELL
    elif TILE % BLOCK_SIZE == 0:
        shift = (block.to(tl.int64) * (BLOCK_SIZE * CELL))[:, None]
    else:
        position_P = tile_start + tl.arange(0, TILE)
        shift = (block.to(tl.int64) * (BLOCK_SIZE * CELL) + position_P % BLOCK_SIZE * CELL)[:, None]
    return shift


@triton.jit
def mask_tile(tile_start, end, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr):
    """Return what of a tile may be loaded: cells past the end may hold NaN."""
    mask_PD = (tile_start + tl.arange(0, TILE) < end)[:, None]
    if DIM_PADDED != HEAD_DIM:
        mask_PD = mask_PD & head_numbers(HEAD_DIM, DIM_PADDED)[1][None, :]
    return mask_PD


@triton.jit
def weigh_tile(q_GD, key_PD, best_G, tile_start, end, scale_log2, TILE: tl.constexpr):
    """Return a tile's weights, the new exponent, and the factor that takes the state's sums to it."""
    is_in_P = tile_start + tl.arange(0, TILE) < end
    score_GP = tl.dot(q_GD, tl.trans(key_PD), input_precision="ieee") * scale_log2
    score_GP = tl.where(is_in_P[None, :], score_GP, float("-inf"))
    new_best_G = tl.maximum(best_G, tl.max(score_GP, 1))
    return tl.exp2(score_GP - new_best_G[:, None]), new_best_G, tl.exp2(best_G - new_best_G)


@triton.jit
def add_tile(acc_GD, sum_GP, weight_GP, value_PD, factor_G):
    """Return the state's sums with a tile's added."""
    acc_GD = acc_GD * factor_G[:, None]
    acc_GD += tl.dot(weight_GP.to(value_PD.dtype), value_PD, input_precision="ieee")
    return acc_GD, sum_GP * factor_G[:, None] + weight_GP


@triton.jit
def _load_queries(q_ptr, GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr):
    """Return a group's queries, zeros in the padding."""
    d, is_in = head_numbers(HEAD_DIM, D)
    g = tl.arange(0, QUERIES)[:, None]
    return tl.load(q_ptr + g * HEAD_DIM + d[None, :], mask=(g < GROUP) & is_in[None, :], other=0.0)


@triton.jit
def attend_cells(
    q_ptr, key_ptr, value_ptr, table_ptr, start, end, scale_log2, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr, NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Return the state of queries over cells [start, end), at least one.

    Queries are waited for inside the loop: the compiler starts the loads of the first tiles in front of it.
    """
    q_GD = tl.zeros((QUERIES, DIM_PADDED), key_ptr.dtype.element_ty)
    acc_GD, sum_GP = tl.zeros((QUERIES, DIM_PADDED), tl.float32), tl.zeros((QUERIES, TILE), tl.float32)
    best_G = tl.full((QUERIES,), float("-inf"), tl.float32)
    place_PD = place_cells(kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, DIM_PADDED, TILE)
    key_at_PD, value_at_PD = key_ptr + place_PD, value_ptr + place_PD
    block = load_block_ids(table_ptr, start, end, BLOCK_SIZE, TILE)
    for tile_start in tl.range(start, end, TILE, num_stages=NUM_STAGES):
        next_block = load_block_ids(table_ptr, tile_start + TILE, end, BLOCK_SIZE, TILE)
        shift = shift_tile(block, tile_start, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE)
        mask_PD = mask_tile(tile_start, end, HEAD_DIM, DIM_PADDED, TILE)
        key_PD = tl.load(key_at_PD + shift, mask=mask_PD, other=0.0)
        value_PD = tl.load(value_at_PD + shift, mask=mask_PD, other=0.0)
        if tile_start == start:
            if PDL:
                gdc_wait()
                gdc_launch_dependents()
            q_GD = _load_queries(q_ptr, GROUP, QUERIES, HEAD_DIM, DIM_PADDED)
        weight_GP, best_G, factor_G = weigh_tile(q_GD, key_PD, best_G, tile_start, end, scale_log2, TILE)
        acc_GD, sum_GP = add_tile(acc_GD, sum_GP, weight_GP, value_PD, factor_G)
        block = next_block
    return acc_GD, sum_GP, best_G
