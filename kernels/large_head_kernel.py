"""The Gluon kernel of large_head: many rows times weights with very many outputs, summed up as they leave.

Two warpgroups multiply 64 outputs each by all rows, and the second one has the copy engine refill the ring
of both; a third one has what they leave in shared memory written, and sums it up for the sampler while the
next tile is multiplied. Each weight is fetched once for all rows. Knows nothing about how tokens are drawn.

Shapes: R rows, I inputs, O outputs. A program takes every so many-th tile of 128 outputs.
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
from kernels.ring_stage import next_stage
from kernels.tile_summary import allocate_wishes, keep_wishes, summarize_tile

NUM_PARTS = gl.constexpr(2)
"""Warpgroups that multiply."""


@gluon.jit
def _allocate(like, NUM: gl.constexpr):
    """Return so many blocks of shared memory."""
    shape: gl.constexpr = [NUM, like.block_type.shape[0], like.block_type.shape[1]]
    return gl.allocate_shared_memory(like.dtype, shape, like.layout)


@gluon.jit
def _allocate_barriers(NUM: gl.constexpr, COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(bars.index(index), count=COUNT)
    return bars


@gluon.jit
def _begin_ring(weight, x, ring, PDL: gl.constexpr):
    """Fill the ring: with weights, constants, at once, with rows when the kernels in front have ended."""
    weight_ring, x_ring, full, _ = ring
    STAGES: gl.constexpr = weight_ring.shape[0]
    BLOCK_I: gl.constexpr = weight_ring.shape[2]
    first = gl.program_id(0) * weight_ring.shape[1]
    for stage in gl.static_range(STAGES):
        bar = full.index(stage)
        mbarrier.expect(bar, weight.block_type.nbytes + x.block_type.nbytes)
        tma.async_copy_global_to_shared(weight, [first, stage * BLOCK_I], bar, weight_ring.index(stage))
    if PDL:
        gdc_wait()
    for stage in gl.static_range(STAGES):
        tma.async_copy_global_to_shared(x, [0, stage * BLOCK_I], full.index(stage), x_ring.index(stage))


@gluon.jit
def _refill(weight, x, ring, stage, phase, step, num_steps, NUM_INNER: gl.constexpr):
    """Fill a stage whose step has been multiplied here, once it has been in the other part, too."""
    weight_ring, x_ring, full, empty = ring
    later = step + weight_ring.shape[0]
    if later < num_steps:
        mbarrier.wait(empty.index(stage), phase)
        first = (gl.program_id(0) + later // NUM_INNER * gl.num_programs(0)) * weight_ring.shape[1]
        inner = later % NUM_INNER * weight_ring.shape[2]
        bar = full.index(stage)
        mbarrier.expect(bar, weight.block_type.nbytes + x.block_type.nbytes)
        tma.async_copy_global_to_shared(weight, [first, inner], bar, weight_ring.index(stage))
        tma.async_copy_global_to_shared(x, [0, inner], bar, x_ring.index(stage))


@gluon.jit
def _free(sources, ring, stage, phase, step, num_steps, NUM_INNER: gl.constexpr, PART: gl.constexpr):
    """Give back the stage in front of this one: the second part, which is behind, fills it again."""
    STAGES: gl.constexpr = ring[0].shape[0]
    # Not variables that the loop sets to stage and phase: Triton takes them for those in front of the loop.
    prior = gl.where(stage == 0, STAGES - 1, stage - 1)
    if PART == 0:
        mbarrier.arrive(ring[3].index(prior), count=1)
    else:
        prior_phase = gl.where(stage == 0, phase ^ 1, phase)
        _refill(sources[0], sources[1], ring, prior, prior_phase, step, num_steps, NUM_INNER)


@gluon.jit
def _multiply_tiles(
    sources, ring, leaving, kept, outs, counts,
    I: gl.constexpr, O: gl.constexpr, IS_SAMPLED: gl.constexpr, PART: gl.constexpr, PDL: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Multiply this part of each tile's outputs by all rows, and leave the product, rows first."""
    weight_ring, x_ring, full, _ = ring
    room, room_full, room_empty = leaving
    num_rows, num_tiles = counts
    OUTPUTS: gl.constexpr = weight_ring.shape[1] // NUM_PARTS
    ROWS: gl.constexpr = x_ring.shape[1]
    NUM_INNER: gl.constexpr = I // weight_ring.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16]
    )
    if PART == 1:
        _begin_ring(sources[0], sources[1], ring, PDL)
    stage, phase = 0, 0
    num_steps = num_tiles * NUM_INNER
    for tile in range(num_tiles):
        product = gl.zeros((OUTPUTS, ROWS), gl.float32, layout=layout)
        for inner in range(NUM_INNER):
            mbarrier.wait(full.index(stage), phase)
            weights = weight_ring.index(stage).slice(PART * OUTPUTS, OUTPUTS, dim=0)
            x = x_ring.index(stage).permute((1, 0))
            product = warpgroup_mma(weights, x, product, use_acc=inner > 0, is_async=True)
            product = warpgroup_mma_wait(1, deps=(product,))
            if inner > 0:
                _free(sources, ring, stage, phase, tile * NUM_INNER + inner - 1, num_steps, NUM_INNER, PART)
            stage, phase = next_stage(stage, phase, weight_ring.shape[0])
        product = warpgroup_mma_wait(0, deps=(product,))
        _free(sources, ring, stage, phase, tile * NUM_INNER + NUM_INNER - 1, num_steps, NUM_INNER, PART)
        mbarrier.wait(room_empty.index(0), tile & 1)
        room.index(PART).permute((1, 0)).store(product.to(room.dtype))
        fence_async_shared()
        mbarrier.arrive(room_full.index(0), count=1)
    if outs[0] is not None:
        last = num_tiles - 1
        mbarrier.wait(room_full.index(0), last & 1)
        last_tile = gl.program_id(0) + last * gl.num_programs(0)
        summarize_tile(room, kept, outs, last_tile, num_rows, 1 + PART, 1 + NUM_PARTS, O, IS_SAMPLED)


@gluon.jit
def _leave_tiles(
    out, leaving, kept, rows, tables, outs, counts, num_chunks,
    O: gl.constexpr, IS_SAMPLED: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Have tile after tile written, and sum it up; the last one together with those that multiplied it."""
    room, room_full, room_empty = leaving
    num_rows, num_tiles = counts
    COLUMNS: gl.constexpr = room.shape[2]
    if outs[0] is not None:
        keep_wishes(kept, rows, tables, num_rows, num_chunks, O, COLUMNS, IS_SAMPLED)
    mbarrier.arrive(room_empty.index(0), count=1)
    for index in range(num_tiles):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        mbarrier.wait(room_full.index(0), index & 1)
        for part in gl.static_range(NUM_PARTS):
            first = (tile * NUM_PARTS + part) * COLUMNS
            tma.async_copy_shared_to_global(out, [0, first], room.index(part))
        if outs[0] is not None:
            step = gl.where(index == num_tiles - 1, 1 + NUM_PARTS, 1)
            summarize_tile(room, kept, outs, tile, num_rows, 0, step, O, IS_SAMPLED)
        tma.store_wait(0)
        mbarrier.arrive(room_empty.index(0), count=1)


@gluon.jit(do_not_specialize=["num_rows"])
def large_head_kernel(
    x, weight, out, lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr, top_p_ptr, seed_ptr,
    maximum_ptr, bound_ptr, sum_ptr, num_chunks, num_rows,
    I: gl.constexpr, O: gl.constexpr, STAGES: gl.constexpr, SUB: gl.constexpr,  # noqa: E741
    IS_SAMPLED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Tile after tile of 128 outputs of all rows."""
    full, empty = _allocate_barriers(STAGES, 1), _allocate_barriers(STAGES, 1)
    ring = (_allocate(weight, STAGES), _allocate(x, STAGES), full, empty)
    leaving = (_allocate(out, NUM_PARTS), _allocate_barriers(1, NUM_PARTS), _allocate_barriers(1, 1))
    kept = allocate_wishes(out.block_type.shape[0], SUB)
    if PDL:
        gdc_launch_dependents()
    num_tiles = gl.cdiv(O // weight.block_type.shape[0] - gl.program_id(0), gl.num_programs(0))
    rows, tables = (lanes_ptr, positions_ptr), (temperature_ptr, top_k_ptr, top_p_ptr, seed_ptr)
    outs = (maximum_ptr, bound_ptr, sum_ptr)
    sources, counts = (weight, x), (num_rows, num_tiles)
    gl.warp_specialize(
        [
            (_multiply_tiles, (sources, ring, leaving, kept, outs, counts, I, O, IS_SAMPLED, 0, PDL)),
            (_multiply_tiles, (sources, ring, leaving, kept, outs, counts, I, O, IS_SAMPLED, 1, PDL)),
            (_leave_tiles, (out, leaving, kept, rows, tables, outs, counts, num_chunks, O, IS_SAMPLED)),
        ],
        [4, 4],
        [184, 136],
    )
