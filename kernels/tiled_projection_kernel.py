"""The Triton kernel of tiled_projection: one tile of rows and outputs a program, multiplied by tensor cores.

The norm in front is one factor a row, so that it follows the product; whoever wrote the rows leaves the
sums of squares that it takes. They are not summed from the tiles here: Triton 3.6 gives a tile that
registers read as well one buffer too few, and the next copy overwrites it while tensor cores read it.
Where the inputs are split between programs, the last to finish adds their sums in the order of the
splits, so that a row's result depends on nothing but the row. Knows nothing about models.

Shapes: R rows, I inputs, O outputs.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.row_squares import load_squares
from kernels.tiled_epilogue import join_splits, store_tile


@triton.jit
def read_ahead(first_ptr, num_rows, ROW_BYTES: tl.constexpr, NUM_BYTES: tl.constexpr):
    """Have the L2 cache read NUM_BYTES of each row: thread t asks for row t."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            .reg .u32 t;
            .reg .u64 a;
            mov.u32 t, %tid.x;
            setp.lt.u32 p, t, $2;
            mad.wide.u32 a, t, $3, $1;
            @p cp.async.bulk.prefetch.L2.global [a], $4;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r,r",
        [first_ptr.to(tl.int64), num_rows, ROW_BYTES, NUM_BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def begin(
    weight_ptr, is_reading, first_column, first_inner,
    I: tl.constexpr, O: tl.constexpr, BLOCK_O: tl.constexpr, NUM_AHEAD: tl.constexpr,  # noqa: E741
    IS_READ_AHEAD: tl.constexpr, IS_GATED: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Have the L2 cache read a tile's first weights, constants, then wait for the kernels in front."""
    if IS_EARLY:
        gdc_launch_dependents()
    if IS_READ_AHEAD:
        ITEM_BYTES: tl.constexpr = weight_ptr.dtype.element_ty.primitive_bitwidth // 8
        first_ptr = weight_ptr + first_column.to(tl.int64) * I + first_inner
        num_columns = tl.where(is_reading, tl.minimum(O - first_column, BLOCK_O), 0)
        read_ahead(first_ptr, num_columns, I * ITEM_BYTES, NUM_AHEAD * ITEM_BYTES)
        if IS_GATED:
            read_ahead(first_ptr + O * I, num_columns, I * ITEM_BYTES, NUM_AHEAD * ITEM_BYTES)
    gdc_wait()
    if not IS_EARLY:
        gdc_launch_dependents()


@triton.jit
def _load_tile(
    source, first_row, num_rows, first_inner, row_stride,
    ROWS: tl.constexpr, INNER: tl.constexpr, I: tl.constexpr,  # noqa: E741
    IS_TMA: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Return (ROWS, INNER) numbers; what lies outside is 0. IS_WHOLE: all inner ones lie inside."""
    if IS_TMA:
        tile = source.load([first_row, first_inner])
    else:
        row, inner = first_row + tl.arange(0, ROWS), first_inner + tl.arange(0, INNER)
        mask = (row < num_rows)[:, None]
        if not IS_WHOLE:
            mask = mask & (inner < I)[None, :]
        tile = tl.load(source + row.to(tl.int64)[:, None] * row_stride + inner[None, :], mask=mask, other=0.0)
    return tile


@triton.jit
def _add_product(product, x, weight, IS_SWAPPED: tl.constexpr):
    """Return the product with x @ weight.T added; it lies the other way round where IS_SWAPPED."""
    if IS_SWAPPED:
        product = tl.dot(weight, tl.trans(x), product, input_precision="ieee")
    else:
        product = tl.dot(x, tl.trans(weight), product, input_precision="ieee")
    return product


@triton.jit
def multiply(
    x, weight, norm_weight_ptr, x_stride, first_row, num_rows, first_column, first_inner,
    I: tl.constexpr, O: tl.constexpr,  # noqa: E741
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, NUM_INPUTS: tl.constexpr,
    STAGES: tl.constexpr, IS_SWAPPED: tl.constexpr, IS_TMA: tl.constexpr, IS_WHOLE: tl.constexpr,
    IS_GATED: tl.constexpr, IS_PAIRED: tl.constexpr = False,
):  # fmt: skip
    """Return the product, and that of the ups. IS_PAIRED: gates and ups are one side of one product."""
    up = 0.0
    if IS_PAIRED:
        product = tl.zeros((2 * BLOCK_O, BLOCK_R), tl.float32)
    elif IS_SWAPPED:
        product = tl.zeros((BLOCK_O, BLOCK_R), tl.float32)
    else:
        product = tl.zeros((BLOCK_R, BLOCK_O), tl.float32)
    if IS_GATED and not IS_PAIRED:
        up = tl.zeros_like(product)
    for inner in tl.range(first_inner, first_inner + NUM_INPUTS, BLOCK_I, num_stages=STAGES):
        factors = _load_tile(x, first_row, num_rows, inner, x_stride, BLOCK_R, BLOCK_I, I, IS_TMA, IS_WHOLE)
        if norm_weight_ptr is not None:
            at = inner + tl.arange(0, BLOCK_I)
            norm_weight = tl.load(norm_weight_ptr + at, mask=at < I, other=0.0).to(tl.float32)
            factors = (factors.to(tl.float32) * norm_weight[None, :]).to(factors.dtype)
        if IS_PAIRED:
            weights = tl.reshape(weight.load([0, first_column, inner]), (2 * BLOCK_O, BLOCK_I))
        else:
            weights = _load_tile(weight, first_column, O, inner, I, BLOCK_O, BLOCK_I, I, IS_TMA, IS_WHOLE)
        product = _add_product(product, factors, weights, IS_SWAPPED)
        if IS_GATED and not IS_PAIRED:
            first_up = O + first_column
            weights = _load_tile(weight, first_up, 2 * O, inner, I, BLOCK_O, BLOCK_I, I, IS_TMA, IS_WHOLE)
            up = _add_product(up, factors, weights, IS_SWAPPED)
    if IS_PAIRED:
        product, up = tl.split(tl.permute(tl.reshape(product, (2, BLOCK_O, BLOCK_R)), (1, 2, 0)))
    return product, up


@triton.jit(do_not_specialize=["num_rows"])
def tiled_projection_kernel(
    x, weight, weight_ptr, norm_weight_ptr, bias_ptr, out_ptr, squares_ptr, squares_out_ptr,
    partial_ptr, counters_ptr, x_stride, out_stride, num_rows, eps,
    I: tl.constexpr, O: tl.constexpr,  # noqa: E741
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, IS_SWAPPED: tl.constexpr, IS_TMA: tl.constexpr, IS_READ_AHEAD: tl.constexpr,
    MOST_AHEAD: tl.constexpr, IS_EARLY: tl.constexpr, IS_GATED: tl.constexpr, IS_ADDED: tl.constexpr,
    IS_PAIRED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_O outputs of BLOCK_R rows, over one split of the inputs."""
    IS_WHOLE: tl.constexpr = I % (SPLITS * BLOCK_I) == 0
    NUM_INPUTS: tl.constexpr = (I + SPLITS * BLOCK_I - 1) // (SPLITS * BLOCK_I) * BLOCK_I
    NUM_AHEAD: tl.constexpr = MOST_AHEAD if MOST_AHEAD < NUM_INPUTS else NUM_INPUTS
    tile, split, num_row_blocks = tl.program_id(0), tl.program_id(1), tl.cdiv(num_rows, BLOCK_R)
    # Programs that share weights are neighbours.
    row_block, column_block = tile % num_row_blocks, tile // num_row_blocks
    first_row, first_column, first_inner = row_block * BLOCK_R, column_block * BLOCK_O, split * NUM_INPUTS
    if PDL:
        begin(
            weight_ptr, row_block == 0, first_column, first_inner, I, O, BLOCK_O, NUM_AHEAD,
            IS_READ_AHEAD and IS_WHOLE, IS_GATED, IS_EARLY,
        )  # fmt: skip
    row, column = first_row + tl.arange(0, BLOCK_R), first_column + tl.arange(0, BLOCK_O)
    prior, factor = 0.0, 1.0
    if IS_ADDED:
        at = out_ptr + row.to(tl.int64)[:, None] * out_stride + column[None, :]
        prior = tl.load(at, mask=(row < num_rows)[:, None] & (column < O)[None, :], other=0.0).to(tl.float32)
    if squares_ptr is not None:
        squares = load_squares(squares_ptr, row, num_rows, I)
    product, up = multiply(
        x, weight, norm_weight_ptr, x_stride, first_row, num_rows, first_column, first_inner, I, O,
        BLOCK_R, BLOCK_O, BLOCK_I, NUM_INPUTS, STAGES, IS_SWAPPED, IS_TMA, IS_WHOLE, IS_GATED, IS_PAIRED,
    )  # fmt: skip
    if squares_ptr is not None:
        factor = 1.0 / tl.sqrt(tl.sum(squares, 1) / I + eps)
        # Behind the last row lies anything, whose gates would overflow.
        factor = tl.where(row < num_rows, factor, 0.0)[:, None]
    is_last = True
    if SPLITS > 1:
        partial_ptr += tile.to(tl.int64) * SPLITS * BLOCK_R * BLOCK_O
        is_last, product = join_splits(
            product, partial_ptr, counters_ptr + tile, split, row < num_rows, SPLITS, IS_SWAPPED
        )
    if is_last:
        store_tile(
            product, up, prior, factor, bias_ptr, out_ptr, squares_out_ptr, row, column, first_column,
            num_rows, out_stride, O, IS_GATED, IS_SWAPPED,
        )  # fmt: skip
