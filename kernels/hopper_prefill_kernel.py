"""The Gluon kernel of prefill attention over nothing but new tokens, for Hopper's tensor cores.

Two warpgroups compute one query head each of a pair that shares K and V, over the same tokens; a warp
of its own fetches queries, K and V for both by the tensor memory accelerator, tiles and pieces of work
ahead of them. A warpgroup starts the next tile's scores before it weighs this tile's values, so that
exponentials and products overlap, also between the two. Programs stay and draw pieces of work from a
counter until none is left. Knows nothing about caches or requests.

Shapes: Q queries of a tile (tokens of one head), P cells of a tile, D head dim.
Source: FlashAttention-3 (Shah et al., 2024).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.hopper_prefill_fetch import produce
from kernels.ring_stage import next_stage
from kernels.told_number import read_number


@gluon.jit
def _scores(q_buf, key_buf):
    """Start the product of queries and a tile of K."""
    NUM_QUERIES: gl.constexpr = q_buf.shape[0]
    TILE: gl.constexpr = key_buf.shape[0]
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    zero_QP = gl.zeros([NUM_QUERIES, TILE], gl.float32, SCORE)
    return warpgroup_mma(q_buf, key_buf.permute((1, 0)), zero_QP, use_acc=False, is_async=True)


@gluon.jit
def _as_weights(weight_QP, DTYPE: gl.constexpr, OUT: gl.constexpr):
    return gl.convert_layout(weight_QP.to(DTYPE), gl.DotOperandLayout(0, OUT, 2))


@gluon.jit
def _begin(q_buf, key_buf, empty_bar, first_query, first_cell, scale_log2, OUT: gl.constexpr):
    """Weigh the tile that the diagonal crosses: its weights, their sums, the best scores."""
    score_QP = warpgroup_mma_wait(0, deps=(_scores(q_buf, key_buf),))
    mbarrier.arrive(empty_bar, count=1)
    NUM_QUERIES: gl.constexpr = q_buf.shape[0]
    TILE: gl.constexpr = key_buf.shape[0]
    SCORE: gl.constexpr = score_QP.type.layout
    query_Q = first_query + gl.arange(0, NUM_QUERIES, gl.SliceLayout(1, SCORE))
    cell_P = first_cell + gl.arange(0, TILE, gl.SliceLayout(0, SCORE))
    score_QP = gl.where(cell_P[None, :] <= query_Q[:, None], score_QP, float("-inf"))
    best_Q = gl.max(score_QP, 1)
    weight_QP = gl.exp2(score_QP * scale_log2 - (best_Q * scale_log2)[:, None])
    sum_Q = gl.convert_layout(gl.sum(weight_QP, 1), gl.SliceLayout(1, OUT))
    best_Q = gl.convert_layout(best_Q, gl.SliceLayout(1, OUT))
    return _as_weights(weight_QP, key_buf.dtype, OUT), sum_Q, best_Q


@gluon.jit
def _fold(
    q_buf, value_buf, weight, acc_QD, sum_Q, best_Q, stage, phase, turn_phase, past_bar, past_phase,
    scale_log2, bufs, bars, HEAD: gl.constexpr,
):  # fmt: skip
    """Add values by the weights of one tile while the next one's scores become weights."""
    key_bufs = bufs[1]
    key_bars, value_bars, turn_bars = bars[1], bars[2], bars[3]
    NUM_STAGES: gl.constexpr = key_bufs.shape[0]
    old_stage, old_phase = stage, phase
    stage, phase = next_stage(stage, phase, NUM_STAGES)
    mbarrier.wait(key_bars.index(stage), phase)
    mbarrier.wait(turn_bars.index(HEAD), turn_phase)
    score = _scores(q_buf, key_bufs.index(stage))
    mbarrier.wait(value_bars.index(old_stage), old_phase)
    acc = warpgroup_mma(weight, value_buf, acc_QD, is_async=True)
    mbarrier.arrive(turn_bars.index(1 - HEAD), count=1)
    score_QP = warpgroup_mma_wait(1, deps=(score,))
    mbarrier.arrive(key_bars.index(NUM_STAGES + stage), count=1)
    OUT: gl.constexpr = acc_QD.type.layout
    SCORE: gl.constexpr = score_QP.type.layout
    new_best_Q = gl.maximum(best_Q, gl.convert_layout(gl.max(score_QP, 1), gl.SliceLayout(1, OUT)))
    base_Q = new_best_Q * scale_log2
    score_base_Q = gl.convert_layout(base_Q, gl.SliceLayout(1, SCORE))
    weight_QP = gl.exp2(score_QP * scale_log2 - score_base_Q[:, None])
    old_weight_Q = gl.exp2(best_Q * scale_log2 - base_Q)
    new_sum_Q = gl.convert_layout(gl.sum(weight_QP, 1), gl.SliceLayout(1, OUT))
    sum_Q = sum_Q * old_weight_Q + new_sum_Q
    # Long past, but a place that the compiler moves no exponentials behind.
    mbarrier.wait(past_bar, past_phase)
    acc_QD = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(value_bars.index(NUM_STAGES + old_stage), count=1)
    acc_QD = acc_QD * old_weight_Q[:, None]
    weight = _as_weights(weight_QP, key_bufs.dtype, OUT)
    return weight, acc_QD, sum_Q, new_best_Q, stage, phase, turn_phase ^ 1


@gluon.jit
def _attend(
    first_query, num_tiles, stage, phase, turn_phase, q_stage, q_phase, scale_log2, bufs, bars,
    HEAD: gl.constexpr,
):  # fmt: skip
    """Return the sum of values and that of weights of one piece of work."""
    q_bufs, key_bufs, value_bufs = bufs[0], bufs[1], bufs[2]
    q_bars, key_bars, value_bars = bars[0], bars[1], bars[2]
    NUM_STAGES: gl.constexpr = key_bufs.shape[0]
    NUM_QUERIES: gl.constexpr = q_bufs.shape[1]
    TILE: gl.constexpr = key_bufs.shape[1]
    HEAD_DIM: gl.constexpr = key_bufs.shape[2]
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    acc_QD = gl.zeros([NUM_QUERIES, HEAD_DIM], gl.float32, OUT)
    q_buf = q_bufs.index(2 * q_stage + HEAD)
    q_bar = q_bars.index(q_stage)
    first_cell = (num_tiles - 1) * TILE
    mbarrier.wait(key_bars.index(stage), phase)
    empty_bar = key_bars.index(NUM_STAGES + stage)
    num_done = 1
    if (num_tiles > 1) & (first_query == first_cell):  # of the diagonal's tile only the beginning counts
        few, sum_Q, best_Q = _begin(
            q_buf, key_bufs.index(stage).slice(0, NUM_QUERIES), empty_bar, first_query, first_cell,
            scale_log2, OUT,
        )  # fmt: skip
        weight, acc_QD, sum_Q, best_Q, stage, phase, turn_phase = _fold(
            q_buf, value_bufs.index(stage).slice(0, NUM_QUERIES), few, acc_QD, sum_Q, best_Q, stage, phase,
            turn_phase, q_bar, q_phase, scale_log2, bufs, bars, HEAD,
        )  # fmt: skip
        num_done = 2
    else:
        weight, sum_Q, best_Q = _begin(
            q_buf, key_bufs.index(stage), empty_bar, first_query, first_cell, scale_log2, OUT
        )
    for _ in range(num_done, num_tiles):
        weight, acc_QD, sum_Q, best_Q, stage, phase, turn_phase = _fold(
            q_buf, value_bufs.index(stage), weight, acc_QD, sum_Q, best_Q, stage, phase, turn_phase, q_bar,
            q_phase, scale_log2, bufs, bars, HEAD,
        )  # fmt: skip
    mbarrier.wait(value_bars.index(stage), phase)
    acc = warpgroup_mma(weight, value_bufs.index(stage), acc_QD, is_async=True)
    acc_QD = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(value_bars.index(NUM_STAGES + stage), count=1)
    stage, phase = next_stage(stage, phase, NUM_STAGES)
    return acc_QD, sum_Q, stage, phase, turn_phase


@gluon.jit
def _store(
    result_QD, buf, out, out_ptr, pair, first_query, first_token, query_len, HEAD: gl.constexpr,
    NUM_HEADS: gl.constexpr,
):  # fmt: skip
    """Leave a result where its queries lay, for the copy engine to take, or threads where the row ends."""
    NUM_QUERIES: gl.constexpr = buf.shape[0]
    HEAD_DIM: gl.constexpr = buf.shape[1]
    buf.store(result_QD)
    head = pair * 2 + HEAD
    if first_query + NUM_QUERIES <= query_len:
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [first_token + first_query, head * HEAD_DIM], buf)
    else:
        ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
        query_Q = first_query + gl.arange(0, NUM_QUERIES, gl.SliceLayout(1, ROWS))
        d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, ROWS))
        start_Q = ((first_token + query_Q).to(gl.int64) * NUM_HEADS + head) * HEAD_DIM
        is_in_Q = query_Q < query_len
        gl.store(out_ptr + start_Q[:, None] + d[None, :], buf.load(ROWS), mask=is_in_Q[:, None])


@gluon.jit
def _consume(outs, scale_log2, bufs, bars, HEAD: gl.constexpr, NUM_HEADS: gl.constexpr):
    """Compute one head of each pair."""
    out, out_ptr = outs
    q_bufs, key_bufs, work = bufs[0], bufs[1], bufs[3]
    q_bars = bars[0]
    NUM_AHEAD: gl.constexpr = q_bufs.shape[0] // 2
    NUM_QUERIES: gl.constexpr = q_bufs.shape[1]
    TILE: gl.constexpr = key_bufs.shape[1]
    stage, q_stage, old_q_stage = 0, 0, 0
    phase, q_phase = 0, 0
    turn_phase = 1 - HEAD  # the first head has the first turn
    num_done = 0
    mbarrier.wait(q_bars.index(q_stage), q_phase)
    pair = read_number(work.index(4 * q_stage))
    while pair >= 0:
        first_query = read_number(work.index(4 * q_stage + 1))
        first_token = read_number(work.index(4 * q_stage + 2))
        query_len = read_number(work.index(4 * q_stage + 3))
        num_tiles = gl.cdiv(gl.minimum(first_query + NUM_QUERIES, query_len), TILE)
        # Only now is the result before this one sure to have left the place of its queries.
        tma.store_wait(0)
        mbarrier.arrive(q_bars.index(NUM_AHEAD + old_q_stage), count=1, pred=num_done > 0)
        acc_QD, sum_Q, stage, phase, turn_phase = _attend(
            first_query, num_tiles, stage, phase, turn_phase, q_stage, q_phase, scale_log2, bufs, bars, HEAD
        )
        result_QD = (acc_QD * (1.0 / sum_Q)[:, None]).to(key_bufs.dtype)
        buf = q_bufs.index(2 * q_stage + HEAD)
        _store(result_QD, buf, out, out_ptr, pair, first_query, first_token, query_len, HEAD, NUM_HEADS)
        num_done += 1
        old_q_stage = q_stage
        q_stage, q_phase = next_stage(q_stage, q_phase, NUM_AHEAD)
        mbarrier.wait(q_bars.index(q_stage), q_phase)
        pair = read_number(work.index(4 * q_stage))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_works"])
def hopper_prefill_kernel(
    queries, keys, values, tiles_ptr, counter_ptr, out, out_ptr, scale_log2, num_works,
    NUM_HEADS: gl.constexpr, GROUP: gl.constexpr, NUM_STAGES: gl.constexpr, IS_BESIDE: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Compute pieces of work, a tile of the list for two query heads each, until none is left."""
    NUM_PAIRS: gl.constexpr = NUM_HEADS // 2
    # A result leaves from where its queries lay, so that the next ones need another place.
    NUM_AHEAD: gl.constexpr = 2
    NUM_QUERIES: gl.constexpr = queries.block_type.shape[0]
    TILE: gl.constexpr = keys.block_type.shape[0]
    HEAD_DIM: gl.constexpr = keys.block_type.shape[1]
    q_bufs = gl.allocate_shared_memory(queries.dtype, [2 * NUM_AHEAD, NUM_QUERIES, HEAD_DIM], queries.layout)
    key_bufs = gl.allocate_shared_memory(keys.dtype, [NUM_STAGES, TILE, HEAD_DIM], keys.layout)
    value_bufs = gl.allocate_shared_memory(keys.dtype, [NUM_STAGES, TILE, HEAD_DIM], values.layout)
    work = gl.allocate_shared_memory(gl.int32, [4 * NUM_AHEAD, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # Of each: full first, then empty.
    q_bars = gl.allocate_shared_memory(gl.int64, [2 * NUM_AHEAD, 1], mbarrier.MBarrierLayout())
    key_bars = gl.allocate_shared_memory(gl.int64, [2 * NUM_STAGES, 1], mbarrier.MBarrierLayout())
    value_bars = gl.allocate_shared_memory(gl.int64, [2 * NUM_STAGES, 1], mbarrier.MBarrierLayout())
    turn_bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(turn_bars.index(0), count=1)
    mbarrier.init(turn_bars.index(1), count=1)
    for stage in gl.static_range(NUM_AHEAD):
        mbarrier.init(q_bars.index(stage), count=1)
        mbarrier.init(q_bars.index(NUM_AHEAD + stage), count=2)
    for stage in gl.static_range(NUM_STAGES):
        mbarrier.init(key_bars.index(stage), count=1)
        mbarrier.init(value_bars.index(stage), count=1)
        mbarrier.init(key_bars.index(NUM_STAGES + stage), count=2)
        mbarrier.init(value_bars.index(NUM_STAGES + stage), count=2)
    bufs = (q_bufs, key_bufs, value_bufs, work)
    bars = (q_bars, key_bars, value_bars, turn_bars)
    outs = (out, out_ptr)
    loads = (queries, keys, values, tiles_ptr, counter_ptr, num_works)
    if PDL and not IS_BESIDE:
        gdc_wait()
    if PDL:
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_consume, (outs, scale_log2, bufs, bars, 0, NUM_HEADS)),
            (_consume, (outs, scale_log2, bufs, bars, 1, NUM_HEADS)),
            (produce, (loads, bufs, bars, NUM_PAIRS, GROUP)),
        ],
        [4, 1],
        [232, 40],
    )
    if PDL and IS_BESIDE:
        gdc_wait()  # only now: who comes next waits for this kernel alone
