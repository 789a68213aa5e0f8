"""The Triton kernel of prefill attention: tiles of queries over their row's paged context.

A program computes some consecutive tokens of one row for all query heads of one KV head, so that K
and V are read once for the group. Tiles of K that all its queries see come first, without masks;
then those that the diagonal crosses. Given fresh rows, K and V of the row's new tokens are read from
where the projection left them, by the tensor memory accelerator, and only older cells from the cache.
Knows nothing about requests.

Shapes: Q queries of a tile (tokens x heads of the group), D head dim (padded), P cells of a tile.
Source: FlashAttention-2 (Dao, 2023) on paged tables (Kwon et al., 2023).
"""

import triton
import triton.language as tl

from kernels.block_ids import load_block_ids
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _weigh(q_QD, key_PD, sum_Q, best_Q, position_Q, position_P, scale_log2, IS_MASKED: tl.constexpr):
    """Return the tile's weights, the new sums and exponents' base, and what older sums are scaled with."""
    score_QP = tl.dot(q_QD, tl.trans(key_PD), input_precision="ieee")
    if IS_MASKED:
        score_QP = tl.where(position_P[None, :] <= position_Q[:, None], score_QP, float("-inf"))
    new_best_Q = tl.maximum(best_Q, tl.max(score_QP, 1) * scale_log2)
    weight_QP = tl.exp2(score_QP * scale_log2 - new_best_Q[:, None])
    old_weight_Q = tl.exp2(best_Q - new_best_Q)
    return weight_QP, sum_Q * old_weight_Q + tl.sum(weight_QP, 1), new_best_Q, old_weight_Q


@triton.jit
def _attend_cached(
    q_QD, acc_QD, sum_Q, best_Q, position_Q, key_ptr, value_ptr, table_ptr, start, end, scale_log2, kv_head,
    IS_MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Fold cells [start, end) of the cache into the running sums; start is a multiple of TILE."""
    d, p = tl.arange(0, q_QD.shape[1]), tl.arange(0, TILE)
    block = load_block_ids(table_ptr, start, end, BLOCK_SIZE, TILE)
    for tile_start in tl.range(start, end, TILE, num_stages=NUM_STAGES):
        position_P = tile_start + p
        next_block = load_block_ids(table_ptr, tile_start + TILE, end, BLOCK_SIZE, TILE)
        if BLOCK_SIZE % TILE == 0:
            cell_P = block.to(tl.int64) * BLOCK_SIZE + tile_start % BLOCK_SIZE + p
        else:
            cell_P = block.to(tl.int64) * BLOCK_SIZE + position_P % BLOCK_SIZE
        offset_PD = (cell_P * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        mask_PD = (d < HEAD_DIM)[None, :]
        if IS_MASKED:  # cells past the context may hold NaN
            mask_PD = mask_PD & (position_P < end)[:, None]
            # Where the new tokens are fresh, all see the last cell, but none what lies behind it.
            position_P = tl.where(position_P < end, position_P, 2**31 - 1)
        key_PD = tl.load(key_ptr + offset_PD, mask=mask_PD, other=0.0)
        weight_QP, sum_Q, best_Q, old_weight_Q = _weigh(
            q_QD, key_PD, sum_Q, best_Q, position_Q, position_P, scale_log2, IS_MASKED
        )
        value_PD = tl.load(value_ptr + offset_PD, mask=mask_PD, other=0.0)
        acc_QD = acc_QD * old_weight_Q[:, None]
        acc_QD = tl.dot(weight_QP.to(value_PD.dtype), value_PD, acc_QD, input_precision="ieee")
        block = next_block
    return acc_QD, sum_Q, best_Q


@triton.jit
def _attend_fresh(
    q_QD, acc_QD, sum_Q, best_Q, query_Q, keys, values, first_token, start, end, scale_log2, kv_head,
    IS_MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the row's new tokens [start, end) into the running sums; start is a multiple of TILE."""
    for tile_start in tl.range(start, end, TILE, num_stages=NUM_STAGES):
        token, query_P = first_token + tile_start, tile_start + tl.arange(0, TILE)
        key_PD = keys.load([token, kv_head * HEAD_DIM])
        weight_QP, sum_Q, best_Q, old_weight_Q = _weigh(
            q_QD, key_PD, sum_Q, best_Q, query_Q, query_P, scale_log2, IS_MASKED
        )
        value_PD = values.load([token, kv_head * HEAD_DIM])
        if IS_MASKED:  # the tile may reach over the row's end into another's, which may be NaN
            value_PD = tl.where((query_P < end)[:, None], value_PD, 0.0)
        acc_QD = acc_QD * old_weight_Q[:, None]
        acc_QD = tl.dot(weight_QP.to(value_PD.dtype), value_PD, acc_QD, input_precision="ieee")
    return acc_QD, sum_Q, best_Q


@triton.jit
def _attend_all_cached(
    q_QD, acc_QD, sum_Q, best_Q, position_Q, key_ptr, value_ptr, table_ptr, num_seen_by_all, num_seen,
    scale_log2, kv_head, BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the first num_seen cells of the cache in; whole tiles that all queries see need no mask."""
    num_unmasked = num_seen_by_all // TILE * TILE
    acc_QD, sum_Q, best_Q = _attend_cached(
        q_QD, acc_QD, sum_Q, best_Q, position_Q, key_ptr, value_ptr, table_ptr, 0, num_unmasked,
        scale_log2, kv_head, False, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip
    return _attend_cached(
        q_QD, acc_QD, sum_Q, best_Q, position_Q, key_ptr, value_ptr, table_ptr, num_unmasked, num_seen,
        scale_log2, kv_head, True, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip


@triton.jit
def attend_all_fresh(
    q_QD, acc_QD, sum_Q, best_Q, query_Q, keys, values, first_token, num_seen_by_all, num_seen, scale_log2,
    kv_head, HEAD_DIM: tl.constexpr, TILE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the row's first num_seen new tokens in, as _attend_all_cached does."""
    num_unmasked = num_seen_by_all // TILE * TILE
    acc_QD, sum_Q, best_Q = _attend_fresh(
        q_QD, acc_QD, sum_Q, best_Q, query_Q, keys, values, first_token, 0, num_unmasked, scale_log2,
        kv_head, False, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip
    return _attend_fresh(
        q_QD, acc_QD, sum_Q, best_Q, query_Q, keys, values, first_token, num_unmasked, num_seen, scale_log2,
        kv_head, True, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip


@triton.jit
def load_queries(
    q_ptr, tile_ptr, q_stride, kv_head, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, NUM_QUERIES: tl.constexpr,
):  # fmt: skip
    """Return a tile's queries, their numbers among the row's new tokens, where output goes, and which count.

    Also what the tile list says: the tile's first new token, the row's first among all, how many it has.
    """
    TOKENS: tl.constexpr = NUM_QUERIES // GROUP
    first_query, first_token, query_len = tl.load(tile_ptr + 1), tl.load(tile_ptr + 2), tl.load(tile_ptr + 3)
    q, d = tl.arange(0, NUM_QUERIES), tl.arange(0, DIM_PADDED)
    query_Q = first_query + q // GROUP
    token_Q = first_token.to(tl.int64) + query_Q
    head_Q = kv_head * GROUP + q % GROUP
    is_in_Q = query_Q < query_len
    if NUM_QUERIES % GROUP:
        is_in_Q = is_in_Q & (q < TOKENS * GROUP)
    mask_QD = is_in_Q[:, None]
    if HEAD_DIM < DIM_PADDED:
        mask_QD = mask_QD & (d < HEAD_DIM)[None, :]
    q_QD = tl.load(
        q_ptr + (token_Q * q_stride + head_Q * HEAD_DIM)[:, None] + d[None, :], mask=mask_QD, other=0.0
    )
    out_offset_QD = (token_Q * NUM_KV_HEADS * GROUP + head_Q)[:, None] * HEAD_DIM + d[None, :]
    return q_QD, query_Q, out_offset_QD, mask_QD, first_query, first_token, query_len


@triton.jit
def _compute_tile(
    q_ptr, key_ptr, value_ptr, fresh_keys, fresh_values, table_ptr, lanes_ptr, seq_lens_ptr,
    tile_ptr, row, out_ptr, scale_log2, q_stride, table_stride, kv_head,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, NUM_QUERIES: tl.constexpr, TILE: tl.constexpr, FRESH_TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute some of one row's tokens, for one KV head's group."""
    TOKENS: tl.constexpr = NUM_QUERIES // GROUP
    HAS_FRESH: tl.constexpr = fresh_keys is not None
    q_QD, query_Q, out_offset_QD, mask_QD, first_query, first_token, query_len = load_queries(
        q_ptr, tile_ptr, q_stride, kv_head, NUM_KV_HEADS, GROUP, HEAD_DIM, DIM_PADDED, NUM_QUERIES
    )
    num_old = tl.load(seq_lens_ptr + row) - query_len
    position_Q = num_old + query_Q
    acc_QD = tl.zeros((NUM_QUERIES, DIM_PADDED), tl.float32)
    sum_Q = tl.zeros((NUM_QUERIES,), tl.float32)
    best_Q = tl.full((NUM_QUERIES,), float("-inf"), tl.float32)
    table_ptr += tl.load(lanes_ptr + row).to(tl.int64) * table_stride
    num_new = tl.minimum(first_query + TOKENS, query_len)
    acc_QD, sum_Q, best_Q = _attend_all_cached(
        q_QD, acc_QD, sum_Q, best_Q, position_Q, key_ptr, value_ptr, table_ptr,
        num_old if HAS_FRESH else num_old + first_query + 1, num_old if HAS_FRESH else num_old + num_new,
        scale_log2, kv_head, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, TILE, NUM_STAGES,
    )  # fmt: skip
    if HAS_FRESH:
        acc_QD, sum_Q, best_Q = attend_all_fresh(
            q_QD, acc_QD, sum_Q, best_Q, query_Q, fresh_keys, fresh_values, first_token, first_query + 1,
            num_new, scale_log2, kv_head, HEAD_DIM, FRESH_TILE, NUM_STAGES,
        )  # fmt: skip
    tl.store(out_ptr + out_offset_QD, (acc_QD / sum_Q[:, None]).to(out_ptr.dtype.element_ty), mask=mask_QD)


# No variant by how many rows stand in front, which move what is read number by number: who comes first with
# another one would wait for a compiler.
@triton.jit(do_not_specialize=["num_tiles"], do_not_specialize_on_alignment=["lanes_ptr", "seq_lens_ptr"])
def paged_prefill_kernel(
    q_ptr, key_ptr, value_ptr, fresh_keys, fresh_values, table_ptr, lanes_ptr, seq_lens_ptr,
    tiles_ptr, out_ptr, scale_log2, q_stride, table_stride, num_tiles,
    BLOCK_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, NUM_QUERIES: tl.constexpr, TILE: tl.constexpr, FRESH_TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr, IS_EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute every so manieth tile of the list, up to the padding, for one KV head's group."""
    if IS_EARLY:
        gdc_launch_dependents()
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    row = tl.load(tiles_ptr + 4 * tile)  # of the first there is one
    while row >= 0:
        _compute_tile(
            q_ptr, key_ptr, value_ptr, fresh_keys, fresh_values, table_ptr, lanes_ptr, seq_lens_ptr,
            tiles_ptr + 4 * tile, row, out_ptr, scale_log2, q_stride, table_stride, kv_head,
            BLOCK_SIZE, NUM_KV_HEADS, GROUP, HEAD_DIM, DIM_PADDED, NUM_QUERIES, TILE, FRESH_TILE, NUM_STAGES,
        )  # fmt: skip
        tile += tl.num_programs(1)
        row = tl.load(tiles_ptr + 4 * tile, mask=tile < num_tiles, other=-1)
    if PDL:
        gdc_wait()  # only now: who comes next waits for this kernel alone
