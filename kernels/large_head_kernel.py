"""The Gluon kernel of large_head: many rows times weights with very many outputs, summed up as they leave.

Two warpgroups multiply 64 outputs each by all rows, and the second one has the copy engine refill the ring
of both; a third one has what they leave in shared memory written, or sums it up for the sampler while the
next tile is multiplied, and writes what the sampler may read. Each weight is fetched once for all rows; where
their number is no power of two, as Triton's layouts want it, they lie in two blocks, each with its product.
Knows nothing about how tokens are drawn.

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
def _there(first, second):
    """Return the blocks of rows that there are."""
    blocks = gl.tuple([first])
    if second is not None:
        blocks = blocks + gl.tuple([second])
    return blocks


@gluon.jit
def _allocate(like, NUM: gl.constexpr):
    """Return so many blocks of shared memory."""
    shape: gl.constexpr = [NUM, like.block_type.shape[0], like.block_type.shape[1]]
    return gl.allocate_shared_memory(like.dtype, shape, like.layout)


@gluon.jit
def _allocate_each(likes, NUM: gl.constexpr):
    """Return so many blocks like each."""
    blocks = gl.tuple([])
    for index in gl.static_range(len(likes)):
        blocks = blocks + gl.tuple([_allocate(likes[index], NUM)])
    return blocks


@gluon.jit
def _allocate_barriers(NUM: gl.constexpr, COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(bars.index(index), count=COUNT)
    return bars


@gluon.jit
def _copy(source, place, bar, target):
    """Fill a block; the barrier counts each that it waits for."""
    mbarrier.expect(bar, source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, place, bar, target)


@gluon.jit
def _copy_rows(xs, ring, stage, inner):
    """Fill a stage's rows."""
    row = 0
    for index in gl.static_range(len(xs)):
        _copy(xs[index], [row, inner], ring[2].index(stage), ring[1][index].index(stage))
        row += xs[index].block_type.shape[0]


@gluon.jit
def _begin_ring(weight, xs, ring, PDL: gl.constexpr):
    """Fill the ring: with weights, constants, at once, with rows when the kernels in front have ended."""
    weight_ring, _, full, _ = ring
    STAGES: gl.constexpr = weight_ring.shape[0]
    BLOCK_I: gl.constexpr = weight_ring.shape[2]
    first = gl.program_id(0) * weight_ring.shape[1]
    for stage in gl.static_range(STAGES):
        _copy(weight, [first, stage * BLOCK_I], full.index(stage), weight_ring.index(stage))
    if PDL:
        gdc_wait()
    for stage in gl.static_range(STAGES):
        _copy_rows(xs, ring, stage, stage * BLOCK_I)


@gluon.jit
def _refill(weight, xs, ring, stage, phase, step, num_steps, NUM_INNER: gl.constexpr):
    """Fill a stage whose step has been multiplied here, once it has been in the other part, too."""
    weight_ring, _, full, empty = ring
    later = step + weight_ring.shape[0]
    if later < num_steps:
        mbarrier.wait(empty.index(stage), phase)
        first = (gl.program_id(0) + later // NUM_INNER * gl.num_programs(0)) * weight_ring.shape[1]
        inner = later % NUM_INNER * weight_ring.shape[2]
        _copy(weight, [first, inner], full.index(stage), weight_ring.index(stage))
        _copy_rows(xs, ring, stage, inner)


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
def _no_product(OUTPUTS: gl.constexpr, ROWS: gl.constexpr):
    """Return zeros as a warpgroup holds a product."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16]
    )
    return gl.zeros((OUTPUTS, ROWS), gl.float32, layout=layout)


@gluon.jit
def _no_products(x_rings, OUTPUTS: gl.constexpr):
    """Return zeros for each block of rows."""
    products = gl.tuple([])
    for index in gl.static_range(len(x_rings)):
        products = products + gl.tuple([_no_product(OUTPUTS, x_rings[index].shape[1])])
    return products


@gluon.jit
def _multiply(weights, x_rings, stage, products, USE_ACC):
    """Begin a stage's products, and wait for those of the stage in front of it."""
    begun = gl.tuple([])
    for index in gl.static_range(len(x_rings)):
        x = x_rings[index].index(stage).permute((1, 0))
        product = warpgroup_mma(weights, x, products[index], use_acc=USE_ACC, is_async=True)
        begun = begun + gl.tuple([product])
    return _wait(len(x_rings), begun)


@gluon.jit
def _wait(NUM_LEFT: gl.constexpr, products):
    """Wait until so many are under way."""
    if len(products) == 1:
        waited = gl.tuple([warpgroup_mma_wait(NUM_LEFT, deps=products)])
    else:
        waited = warpgroup_mma_wait(NUM_LEFT, deps=products)
    return waited


@gluon.jit
def _multiply_tiles(
    sources, ring, leaving, kept, outs, logits, counts,
    I: gl.constexpr, O: gl.constexpr, IS_SAMPLED: gl.constexpr, PART: gl.constexpr, PDL: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Multiply this part of each tile's outputs by all rows, and leave the products, rows first."""
    weight_ring, x_rings, full, _ = ring
    rooms, room_full, room_empty = leaving
    num_rows, num_tiles = counts
    OUTPUTS: gl.constexpr = weight_ring.shape[1] // NUM_PARTS
    NUM_INNER: gl.constexpr = I // weight_ring.shape[2]
    if PART == 1:
        _begin_ring(sources[0], sources[1], ring, PDL)
    stage, phase = 0, 0
    num_steps = num_tiles * NUM_INNER
    for tile in range(num_tiles):
        products = _no_products(x_rings, OUTPUTS)
        for inner in range(NUM_INNER):
            mbarrier.wait(full.index(stage), phase)
            weights = weight_ring.index(stage).slice(PART * OUTPUTS, OUTPUTS, dim=0)
            products = _multiply(weights, x_rings, stage, products, inner > 0)
            if inner > 0:
                _free(sources, ring, stage, phase, tile * NUM_INNER + inner - 1, num_steps, NUM_INNER, PART)
            stage, phase = next_stage(stage, phase, weight_ring.shape[0])
        products = _wait(0, products)
        _free(sources, ring, stage, phase, tile * NUM_INNER + NUM_INNER - 1, num_steps, NUM_INNER, PART)
        mbarrier.wait(room_empty.index(0), tile & 1)
        for index in gl.static_range(len(rooms)):
            rooms[index].index(PART).permute((1, 0)).store(products[index].to(rooms[index].dtype))
        fence_async_shared()
        mbarrier.arrive(room_full.index(0), count=1)
    if outs[0] is not None:
        last = num_tiles - 1
        mbarrier.wait(room_full.index(0), last & 1)
        last_tile = gl.program_id(0) + last * gl.num_programs(0)
        _summarize(rooms, kept, outs, logits, last_tile, num_rows, 1 + PART, 1 + NUM_PARTS, O, IS_SAMPLED)


@gluon.jit
def _summarize(
    rooms, kept, outs, logits, tile, num_rows, part, num_parts,
    O: gl.constexpr, IS_SAMPLED: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Sum up one part of a tile's blocks of rows, and write what may be read."""
    first_row, first_block = 0, part
    for index in gl.static_range(len(rooms)):
        summarize_tile(
            rooms[index], kept[index], outs, logits, tile, first_row, num_rows, first_block, num_parts,
            O, IS_SAMPLED,
        )  # fmt: skip
        first_row += rooms[index].shape[1]
        # Those of the next one are counted on.
        first_block = (first_block + (num_parts - 1) * kept[index][0].shape[0]) % num_parts


@gluon.jit
def _leave_tiles(
    targets, leaving, kept, rows, tables, outs, logits, counts, num_chunks,
    O: gl.constexpr, IS_SAMPLED: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Have tile after tile written, or sum it up; the last one together with those that multiplied it."""
    rooms, room_full, room_empty = leaving
    num_rows, num_tiles = counts
    if outs[0] is not None:
        _keep_wishes(rooms, kept, rows, tables, num_rows, num_chunks, O, IS_SAMPLED)
    mbarrier.arrive(room_empty.index(0), count=1)
    for index in range(num_tiles):
        tile = gl.program_id(0) + index * gl.num_programs(0)
        mbarrier.wait(room_full.index(0), index & 1)
        if outs[0] is not None:
            step = gl.where(index == num_tiles - 1, 1 + NUM_PARTS, 1)
            _summarize(rooms, kept, outs, logits, tile, num_rows, 0, step, O, IS_SAMPLED)
        else:
            _write(targets, rooms, tile)
            tma.store_wait(0)
        mbarrier.arrive(room_empty.index(0), count=1)


@gluon.jit
def _keep_wishes(
    rooms, kept, rows, tables, num_rows, num_chunks,
    O: gl.constexpr, IS_SAMPLED: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Look up what each row wants."""
    first_row = 0
    for index in gl.static_range(len(rooms)):
        keep_wishes(
            kept[index], rows, tables, first_row, num_rows, num_chunks, O, rooms[index].shape[2], IS_SAMPLED
        )
        first_row += rooms[index].shape[1]


@gluon.jit
def _write(targets, rooms, tile):
    """Have a tile written."""
    row = 0
    for index in gl.static_range(len(rooms)):
        for part in gl.static_range(NUM_PARTS):
            column = (tile * NUM_PARTS + part) * rooms[index].shape[2]
            tma.async_copy_shared_to_global(targets[index], [row, column], rooms[index].index(part))
        row += rooms[index].shape[1]


@gluon.jit(do_not_specialize=["num_rows"])
def large_head_kernel(
    x, second_x, weight, out, second_out, out_ptr, out_stride,
    lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr,
    maximum_ptr, bound_ptr, sum_ptr, num_chunks, num_rows,
    I: gl.constexpr, O: gl.constexpr, STAGES: gl.constexpr, SUB: gl.constexpr,  # noqa: E741
    IS_SAMPLED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Tile after tile of 128 outputs of all rows, which lie in one block or two."""
    xs, targets = _there(x, second_x), _there(out, second_out)
    full, empty = _allocate_barriers(STAGES, 1 + len(xs)), _allocate_barriers(STAGES, 1)
    ring = (_allocate(weight, STAGES), _allocate_each(xs, STAGES), full, empty)
    leaving = (
        _allocate_each(targets, NUM_PARTS), _allocate_barriers(1, NUM_PARTS), _allocate_barriers(1, 1)
    )  # fmt: skip
    kept = gl.tuple([])
    for index in gl.static_range(len(xs)):
        kept = kept + gl.tuple([allocate_wishes(xs[index].block_type.shape[0], SUB)])
    if PDL:
        gdc_launch_dependents()
    num_tiles = gl.cdiv(O // weight.block_type.shape[0] - gl.program_id(0), gl.num_programs(0))
    rows = (lanes_ptr, positions_ptr)
    tables = (temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr)
    outs, logits = (maximum_ptr, bound_ptr, sum_ptr), (out_ptr, out_stride)
    sources, counts = (weight, xs), (num_rows, num_tiles)
    gl.warp_specialize(
        [
            (_multiply_tiles, (sources, ring, leaving, kept, outs, logits, counts, I, O, IS_SAMPLED, 0, PDL)),
            (_multiply_tiles, (sources, ring, leaving, kept, outs, logits, counts, I, O, IS_SAMPLED, 1, PDL)),
            (
                _leave_tiles,
                (targets, leaving, kept, rows, tables, outs, logits, counts, num_chunks, O, IS_SAMPLED),
            ),
        ],
        [4, 4],
        [184, 136],
    )
