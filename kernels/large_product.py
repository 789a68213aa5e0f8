"""The product that large projections share, in Gluon: one warp copies, two warpgroups multiply.

A program takes tile after tile of 128 rows and 256 outputs, a span of them with the same rows. One warp
has the copy engine fill a ring of stages; each warpgroup multiplies 64 of the rows and does with its
product what it likes, while the other one, which runs up to a ring ahead or behind, keeps the tensor cores
busy, and the next tile's stages fill. In a span's first tile it sums the rows' squares, too, for their norm.
Knows nothing about what becomes of a product.

Shapes: R rows, I inputs, O outputs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.ring_stage import next_stage

NUM_CONSUMERS = gl.constexpr(2)
PIECE = gl.constexpr(8)
"""Numbers of a row that a thread loads at once, and squares."""
PIECE_ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
PIECES = gl.constexpr(gl.BlockedLayout([1, 1, 8], [4, 8, 1], [4, 1, 1], [2, 1, 0]))


@gluon.jit
def make_ring(x, weight, STAGES: gl.constexpr):
    """Return the ring's tiles of x and weights, and the barriers of full and empty stages and of turns."""
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES] + x.block_type.shape, x.layout)  # noqa: RUF005
    weight_ring = gl.allocate_shared_memory(x.dtype, [STAGES] + weight.block_type.shape, weight.layout)  # noqa: RUF005
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(turns.index(0), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=NUM_CONSUMERS)
    return x_ring, weight_ring, full, empty, turns.index(0)


@gluon.jit
def num_spans(num_rows, span, BLOCK_R: gl.constexpr, NUM_COLUMN_BLOCKS: gl.constexpr):
    """Return how many spans there are: tiles of the same rows, one program's in a row."""
    return gl.cdiv(num_rows, BLOCK_R) * (NUM_COLUMN_BLOCKS // span)


@gluon.jit
def place_span(
    index, num_rows, span, BLOCK_R: gl.constexpr, NUM_COLUMN_BLOCKS: gl.constexpr, GROUP: gl.constexpr
):
    """Return a span's block of rows and first block of columns; GROUP blocks of rows share the L2 cache."""
    num_row_blocks, spans_a_row = gl.cdiv(num_rows, BLOCK_R), NUM_COLUMN_BLOCKS // span
    first = index // (GROUP * spans_a_row) * GROUP
    size = gl.minimum(num_row_blocks - first, GROUP)
    within = index % (GROUP * spans_a_row)
    return first + within % size, within // size * span


@gluon.jit
def _prior(stage, STAGES: gl.constexpr):
    # Not a variable that the loop sets to stage: Triton takes it for the stage in front of the loop.
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def copy_tiles(
    x, weight, ring, num_rows, span,
    I: gl.constexpr, NUM_COLUMN_BLOCKS: gl.constexpr, GROUP: gl.constexpr, IS_GATED: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Fill the ring with all that this program's tiles take."""
    x_ring, weight_ring, full, empty, _ = ring
    STAGES: gl.constexpr = x_ring.shape[0]
    BLOCK_R: gl.constexpr = x_ring.shape[1]
    BLOCK_I: gl.constexpr = x_ring.shape[2]
    stage, phase = 0, 1
    num = num_spans(num_rows, span, BLOCK_R, NUM_COLUMN_BLOCKS)
    for index in range(gl.program_id(0), num, gl.num_programs(0)):
        row_block, first_block = place_span(index, num_rows, span, BLOCK_R, NUM_COLUMN_BLOCKS, GROUP)
        for column_block in range(first_block, first_block + span):
            for inner in range(0, I, BLOCK_I):
                bar = full.index(stage)
                mbarrier.wait(empty.index(stage), phase)
                mbarrier.expect(bar, x.block_type.nbytes + weight.block_type.nbytes)
                tma.async_copy_global_to_shared(x, [row_block * BLOCK_R, inner], bar, x_ring.index(stage))
                if IS_GATED:  # the same columns of gates and of ups
                    at = [0, column_block * weight.block_type.shape[1], inner]
                else:
                    at = [column_block, 0, inner]
                tma.async_copy_global_to_shared(weight, at, bar, weight_ring.index(stage))
                stage, phase = next_stage(stage, phase, STAGES)


@gluon.constexpr_function
def product_layout(num_columns):
    """Return how a product lies in the registers of a warpgroup."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, num_columns, 16])


@gluon.jit
def _multiply(
    ring, stage, phase, turn_phase, layout: gl.constexpr, NUM_INNER: gl.constexpr, PART: gl.constexpr,
    LEAD: gl.constexpr, IS_SQUARED: gl.constexpr,
):  # fmt: skip
    """Return the next tile's product of this part's rows, sums of their squares, and the ring's place."""
    x_ring, weight_ring, full, empty, turn = ring
    STAGES: gl.constexpr = x_ring.shape[0]
    ROWS: gl.constexpr = x_ring.shape[1] // NUM_CONSUMERS
    BLOCK_I: gl.constexpr = x_ring.shape[2]
    COLUMNS: gl.constexpr = weight_ring.shape[1] * weight_ring.shape[2]
    product = gl.zeros((ROWS, COLUMNS), gl.float32, layout=layout)
    squares = gl.zeros((ROWS, BLOCK_I // PIECE), gl.float32, layout=gl.SliceLayout(2, PIECES))
    if LEAD > 0 and PART == 1:
        mbarrier.wait(turn, turn_phase)
    for inner in range(NUM_INNER):
        mbarrier.wait(full.index(stage), phase)
        x = x_ring.index(stage).slice(PART * ROWS, ROWS, dim=0)
        weight = weight_ring.index(stage).reshape([COLUMNS, BLOCK_I]).permute((1, 0))
        product = warpgroup_mma(x, weight, product, use_acc=inner > 0, is_async=True)
        if IS_SQUARED:
            numbers = gl.reshape(x.load(PIECE_ROWS), (ROWS, BLOCK_I // PIECE, PIECE))
            numbers = gl.convert_layout(numbers, PIECES, assert_trivial=True).to(gl.float32)
            squares += gl.sum(numbers * numbers, 2)
        product = warpgroup_mma_wait(1, deps=(product,))
        mbarrier.arrive(empty.index(_prior(stage, STAGES)), count=1, pred=inner > 0)
        if LEAD > 0 and PART == 0:  # noqa: SIM102
            # A branch, not a predicate: every arrival has the warpgroup meet.
            if inner == LEAD:
                mbarrier.arrive(turn, count=1)
        stage, phase = next_stage(stage, phase, STAGES)
    product = warpgroup_mma_wait(0, deps=(product,))
    mbarrier.arrive(empty.index(_prior(stage, STAGES)), count=1)
    return product, squares, stage, phase


@gluon.jit
def multiply(
    ring, stage, phase, turn_phase, scale, is_first, eps, layout: gl.constexpr,
    I: gl.constexpr, PART: gl.constexpr, LEAD: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Return the next tile's product of this part's rows, their norm's factors, and the ring's place then.

    The norm has no weight; a span's first tile tells the factors. With LEAD, for which a tile takes as many
    stages as the ring has, the second part starts so many stages behind the first, which turn_phase tells.
    """
    NUM_INNER: gl.constexpr = I // ring[0].shape[2]
    if is_first:
        product, squares, stage, phase = _multiply(
            ring, stage, phase, turn_phase, layout, NUM_INNER, PART, LEAD, True
        )
        scale = gl.convert_layout(gl.rsqrt(gl.sum(squares, 1) / I + eps), gl.SliceLayout(1, layout))
    else:
        product, squares, stage, phase = _multiply(
            ring, stage, phase, turn_phase, layout, NUM_INNER, PART, LEAD, False
        )
    return product, scale, stage, phase


@gluon.jit
def halves(numbers, LAYOUT: gl.constexpr):
    """Return the lower and the upper half of each row, in LAYOUT: a thread's own numbers."""
    ROWS: gl.constexpr = numbers.shape[0]
    HALF: gl.constexpr = numbers.shape[1] // 2
    low, high = gl.split(gl.permute(gl.reshape(numbers, (ROWS, 2, HALF)), (0, 2, 1)))
    return gl.convert_layout(low, LAYOUT, assert_trivial=True), gl.convert_layout(
        high, LAYOUT, assert_trivial=True
    )
