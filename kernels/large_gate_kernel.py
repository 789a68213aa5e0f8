"""The Gluon kernel of large_projection's gated MLP: silu(gate) * up behind large_product's products.

Knows nothing about models.

Shapes: R rows, I inputs, O outputs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.large_product import (
    NUM_CONSUMERS,
    copy_tiles,
    halves,
    make_ring,
    multiply,
    num_spans,
    place_span,
    product_layout,
)


@gluon.jit
def _leave(numbers, out, room, row, column):
    """Write numbers by way of shared memory, once what was last written from there has left it."""
    tma.store_wait(0)
    room.store(numbers)
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [row, column], room)


@gluon.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) to within what 16 bits hold, in four instructions."""
    return gl.inline_asm_elementwise(
        """
        mul.f32 $0, $1, 0fBFB8AA3B;
        ex2.approx.ftz.f32 $0, $0;
        add.f32 $0, $0, 0f3F800000;
        rcp.approx.ftz.f32 $0, $0;
        """,
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def _gate_tiles(
    out, ring, room, num_rows, span, eps,
    I: gl.constexpr, NUM_COLUMN_BLOCKS: gl.constexpr, GROUP: gl.constexpr, PART: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """Multiply, and leave silu(gate) * up: one half of a product's columns are gates, the other ups."""
    BLOCK_R: gl.constexpr = ring[0].shape[1]
    ROWS: gl.constexpr = BLOCK_R // NUM_CONSUMERS
    BLOCK_O: gl.constexpr = ring[1].shape[2]
    layout: gl.constexpr = product_layout(2 * BLOCK_O)
    stage, phase = 0, 0
    scale = gl.full((ROWS,), 1.0, gl.float32, layout=gl.SliceLayout(1, layout))
    num = num_spans(num_rows, span, BLOCK_R, NUM_COLUMN_BLOCKS)
    for index in range(gl.program_id(0), num, gl.num_programs(0)):
        row_block, first_block = place_span(index, num_rows, span, BLOCK_R, NUM_COLUMN_BLOCKS, GROUP)
        first_row = row_block * BLOCK_R + PART * ROWS
        for column_block in range(first_block, first_block + span):
            product, scale, stage, phase = multiply(
                ring, stage, phase, 0, scale, column_block == first_block, eps, layout, I, PART, 0
            )
            gate, up = halves(product * scale[:, None], product_layout(BLOCK_O))
            gated = (gate * sigmoid(gate) * up).to(out.dtype)
            _leave(gated, out, room.index(PART), first_row, column_block * BLOCK_O)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_rows", "span"])
def large_gate_kernel(
    x, weight, out, num_rows, span, eps,
    I: gl.constexpr, O: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,  # noqa: E741
    PDL: gl.constexpr,
):  # fmt: skip
    """Tile after tile of silu(gate) * up; weight is seen as (2, O, I)."""
    ring = make_ring(x, weight, STAGES)
    SHAPE: gl.constexpr = [NUM_CONSUMERS, out.block_type.shape[0], out.block_type.shape[1]]
    room = gl.allocate_shared_memory(out.dtype, SHAPE, out.layout)
    COLUMNS: gl.constexpr = O // weight.block_type.shape[1]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_gate_tiles, (out, ring, room, num_rows, span, eps, I, COLUMNS, GROUP, 0)),
            (_gate_tiles, (out, ring, room, num_rows, span, eps, I, COLUMNS, GROUP, 1)),
            (copy_tiles, (x, weight, ring, num_rows, span, I, COLUMNS, GROUP, True)),
        ],
        [4, 1],
        [232, 40],
    )
