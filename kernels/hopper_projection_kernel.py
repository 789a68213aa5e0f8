"""The Gluon kernel of hopper_projection: one tile of rows and outputs a program, or a cluster of programs.

The copy engine fills shared memory with weights before the kernel in front has ended, as many as it
holds, and with rows at once when it has. Where programs share the inputs of a tile, they are a cluster,
and send each other their sums. What a kernel leaves is what tiled_projection_kernel leaves.
Knows nothing about models.

Shapes: R rows, I inputs, O outputs. A program takes BLOCK_R rows of BLOCK_O outputs, or of as many gates
and ups, BLOCK_I inputs at a time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.cluster_sum import begin_sums, cluster_rank, sum_over_cluster
from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.large_gate_kernel import sigmoid
from kernels.row_squares import SQUARES_CHUNK
from kernels.tiled_projection_kernel import read_ahead as _read_ahead

CHUNK = gl.constexpr(SQUARES_CHUNK)
read_ahead = gluon.jit(_read_ahead.fn)


@gluon.jit
def place_tile(num_rows, BLOCK_R: gl.constexpr, BLOCK_O: gl.constexpr):
    """Return this program's first row and its first column; neighbours share weights."""
    num_row_blocks = gl.cdiv(num_rows, BLOCK_R)
    return gl.program_id(0) % num_row_blocks * BLOCK_R, gl.program_id(0) // num_row_blocks * BLOCK_O


@gluon.jit
def allocate_buffers(
    source, ROWS: gl.constexpr, BLOCK_I: gl.constexpr, STAGES: gl.constexpr, IS_PAIR: gl.constexpr,
    BARRIER: gl.constexpr,
):  # fmt: skip
    """Return buffers and their barriers, each memory of its own.

    Of one memory the compiler would put a barrier of all threads between any two uses.
    """
    bars, bufs = gl.tuple([]), gl.tuple([])
    for _ in gl.static_range(STAGES):
        bar = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
        mbarrier.init(bar, count=1)
        bars = bars + gl.tuple([bar])
        if IS_PAIR:
            buf = gl.allocate_shared_memory(source.dtype, [2, ROWS, BLOCK_I], source.layout)
        else:
            buf = gl.allocate_shared_memory(source.dtype, [ROWS, BLOCK_I], source.layout)
        bufs = bufs + gl.tuple([buf])
    return bars, bufs


@gluon.jit
def _copy_weights(weights, column, inner, bar, buf, IS_GATED: gl.constexpr):
    mbarrier.expect(bar, weights.block_type.nbytes)
    if IS_GATED:
        tma.async_copy_global_to_shared(weights, [0, column, inner], bar, buf)
    else:
        tma.async_copy_global_to_shared(weights, [column, inner], bar, buf)


@gluon.jit
def _as_matrix(buf, IS_GATED: gl.constexpr, MATRIX: gl.constexpr):
    """Return weights as one matrix: gates, then ups."""
    if IS_GATED:
        buf = buf._reinterpret(buf.dtype, [2 * buf.shape[1], buf.shape[2]], MATRIX)
    return buf


@gluon.jit
def _product(rows, weight, acc, USE_ACC: gl.constexpr, IS_SWAPPED: gl.constexpr):
    if IS_SWAPPED:
        acc = warpgroup_mma(weight, rows.permute((1, 0)), acc, use_acc=USE_ACC, is_async=True)
    else:
        acc = warpgroup_mma(rows, weight.permute((1, 0)), acc, use_acc=USE_ACC, is_async=True)
    return acc


@gluon.jit
def multiply(
    rows, weights, row_bars, row_bufs, weight_bars, weight_bufs, row, column, first_inner,
    NUM_CHUNKS: gl.constexpr, BLOCK_R: gl.constexpr, BLOCK_I: gl.constexpr,
    IS_GATED: gl.constexpr, IS_SWAPPED: gl.constexpr, PRODUCT: gl.constexpr, MATRIX: gl.constexpr,
    N: gl.constexpr,
):  # fmt: skip
    """Return rows @ weights.T, or its transpose if swapped.

    A buffer is filled again when its product is through.
    """
    ROW_STAGES: gl.constexpr = len(row_bufs)
    WEIGHT_STAGES: gl.constexpr = len(weight_bufs)
    if IS_SWAPPED:
        acc = gl.zeros([N, BLOCK_R], gl.float32, PRODUCT)
    else:
        acc = gl.zeros([BLOCK_R, N], gl.float32, PRODUCT)
    for chunk in gl.static_range(NUM_CHUNKS):
        mbarrier.wait(weight_bars[chunk % WEIGHT_STAGES], chunk // WEIGHT_STAGES & 1)
        mbarrier.wait(row_bars[chunk % ROW_STAGES], chunk // ROW_STAGES & 1)
        weight = _as_matrix(weight_bufs[chunk % WEIGHT_STAGES], IS_GATED, MATRIX)
        acc = _product(row_bufs[chunk % ROW_STAGES], weight, acc, chunk > 0, IS_SWAPPED)
        if chunk > 0 and chunk - 1 + min(ROW_STAGES, WEIGHT_STAGES) < NUM_CHUNKS:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            if chunk - 1 + WEIGHT_STAGES < NUM_CHUNKS:
                inner = first_inner + (chunk - 1 + WEIGHT_STAGES) * BLOCK_I
                bar, buf = weight_bars[(chunk - 1) % WEIGHT_STAGES], weight_bufs[(chunk - 1) % WEIGHT_STAGES]
                _copy_weights(weights, column, inner, bar, buf, IS_GATED)
            if chunk - 1 + ROW_STAGES < NUM_CHUNKS:
                inner = first_inner + (chunk - 1 + ROW_STAGES) * BLOCK_I
                bar, buf = row_bars[(chunk - 1) % ROW_STAGES], row_bufs[(chunk - 1) % ROW_STAGES]
                mbarrier.expect(bar, rows.block_type.nbytes)
                tma.async_copy_global_to_shared(rows, [row, inner], bar, buf)
    return warpgroup_mma_wait(0, deps=(acc,))


@gluon.jit
def load_squares(
    squares_ptr, first_row, num_rows, NUM_SUMS: gl.constexpr, R: gl.constexpr, LAYOUT: gl.constexpr
):
    """Return the sums of squares of a tile's rows."""
    row = first_row + gl.arange(0, R, gl.SliceLayout(1, LAYOUT))
    chunk = gl.arange(0, LAYOUT.size_per_thread[1] * 2, gl.SliceLayout(0, LAYOUT))
    at = squares_ptr + row[:, None] * NUM_SUMS + chunk[None, :]
    return gl.load(at, mask=(row < num_rows)[:, None] & (chunk < NUM_SUMS)[None, :], other=0.0)


@gluon.jit
def join(out, rank, SPLITS: gl.constexpr, LAYOUT: gl.constexpr, IS_SWAPPED: gl.constexpr):
    """Return the sums over all inputs, rows first."""
    if IS_SWAPPED:
        out = gl.permute(out, (1, 0))
    if SPLITS > 1:
        out = sum_over_cluster(out, rank, SPLITS, LAYOUT, IS_SWAPPED)
    else:
        out = gl.convert_layout(out, LAYOUT)
    return out


@gluon.jit
def _gated(acc, R: gl.constexpr, O: gl.constexpr, LAYOUT: gl.constexpr):  # noqa: E741
    """Return silu(gate) * up.

    An exact exponential and quotient take 150 to 230 instructions more, which show at the end of a program:
    0.1 us a layer of Qwen3-0.6B at 40 to 128 rows, 0.4 to 0.7 at 160 to 256, on an H200
    (benchmarks/results/step_loop_h200_202611.md).
    """
    gate, up = gl.split(gl.permute(gl.reshape(acc, (R, 2, O)), (0, 2, 1)))
    gate, up = gl.convert_layout(gate, LAYOUT), gl.convert_layout(up, LAYOUT)
    return gate * sigmoid(gate) * up


@gluon.jit
def _store_squares(
    squares_ptr,
    out,
    is_stored,
    first_row,
    first_column,
    num_rows,
    O: gl.constexpr,  # noqa: E741
):
    """Write the sums of squares of a tile, of what of it is stored."""
    NUM_CHUNKS: gl.constexpr = out.shape[1] // CHUNK
    NUM_SUMS: gl.constexpr = O // CHUNK
    out = gl.where(is_stored, out.to(gl.float32), 0.0)
    sums = gl.sum(gl.reshape(out * out, (out.shape[0], NUM_CHUNKS, CHUNK)), 2)
    row = first_row + gl.arange(0, out.shape[0], gl.SliceLayout(1, sums.type.layout))
    chunk = first_column // CHUNK + gl.arange(0, NUM_CHUNKS, gl.SliceLayout(0, sums.type.layout))
    is_in = (row < num_rows)[:, None] & (chunk < NUM_SUMS)[None, :]
    gl.store(squares_ptr + row[:, None] * NUM_SUMS + chunk[None, :], sums, mask=is_in)


@gluon.jit
def begin_weights(
    rows, weights, weight_ptr, row_bars, weight_bars, weight_bufs, first_row, first_column, first_inner,
    NUM_CHUNKS: gl.constexpr, I: gl.constexpr, O: gl.constexpr,  # noqa: E741
    BLOCK_O: gl.constexpr, BLOCK_I: gl.constexpr,
    IS_EARLY: gl.constexpr, IS_GATED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Fill the buffers of weights, constants, while the kernels in front run."""
    HELD: gl.constexpr = len(weight_bufs)
    if PDL and IS_EARLY:
        gdc_launch_dependents()
    for chunk in gl.static_range(HELD):
        inner = first_inner + chunk * BLOCK_I
        _copy_weights(weights, first_column, inner, weight_bars[chunk], weight_bufs[chunk], IS_GATED)
    for chunk in gl.static_range(len(row_bars)):
        mbarrier.expect(row_bars[chunk], rows.block_type.nbytes)
    if PDL and HELD < NUM_CHUNKS:
        ITEM_BYTES: gl.constexpr = weights.dtype.primitive_bitwidth // 8
        num_columns = gl.where(first_row == 0, BLOCK_O, 0)
        first_ptr = weight_ptr + first_column.to(gl.int64) * I + first_inner + HELD * BLOCK_I
        NUM_BYTES: gl.constexpr = (NUM_CHUNKS - HELD) * BLOCK_I * ITEM_BYTES
        read_ahead(first_ptr, num_columns, I * ITEM_BYTES, NUM_BYTES)
        if IS_GATED:
            read_ahead(first_ptr + O * I, num_columns, I * ITEM_BYTES, NUM_BYTES)


@gluon.jit
def begin_rows(
    rows, row_bars, row_bufs, first_row, first_inner,
    BLOCK_I: gl.constexpr, IS_EARLY: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Wait until the kernels in front have ended, and fill the buffers of rows."""
    if PDL:
        gdc_wait()
    for chunk in gl.static_range(len(row_bufs)):
        inner = first_inner + chunk * BLOCK_I
        tma.async_copy_global_to_shared(rows, [first_row, inner], row_bars[chunk], row_bufs[chunk])
    if PDL and not IS_EARLY:
        gdc_launch_dependents()


@gluon.jit(do_not_specialize=["num_rows"])
def hopper_projection_kernel(
    rows, weights, weight_ptr, out_ptr, squares_ptr, squares_out_ptr, out_stride, num_rows, eps,
    I: gl.constexpr, O: gl.constexpr,  # noqa: E741
    BLOCK_R: gl.constexpr, BLOCK_O: gl.constexpr, BLOCK_I: gl.constexpr, SPLITS: gl.constexpr,
    ROW_STAGES: gl.constexpr, WEIGHT_STAGES: gl.constexpr, IS_EARLY: gl.constexpr, IS_SWAPPED: gl.constexpr,
    IS_GATED: gl.constexpr, IS_ADDED: gl.constexpr, PDL: gl.constexpr, BARRIER: gl.constexpr,
    PRODUCT: gl.constexpr, SUMMED: gl.constexpr, GATE: gl.constexpr, STORED: gl.constexpr,
    SQUARES: gl.constexpr, MATRIX: gl.constexpr,
):  # fmt: skip
    """One program: BLOCK_O outputs of BLOCK_R rows, over one split of the inputs."""
    N: gl.constexpr = 2 * BLOCK_O if IS_GATED else BLOCK_O
    NUM_CHUNKS: gl.constexpr = I // SPLITS // BLOCK_I
    first_row, first_column = place_tile(num_rows, BLOCK_R, BLOCK_O)
    rank = cluster_rank() if SPLITS > 1 else 0
    row_bars, row_bufs = allocate_buffers(rows, BLOCK_R, BLOCK_I, ROW_STAGES, False, BARRIER)
    weight_bars, weight_bufs = allocate_buffers(weights, BLOCK_O, BLOCK_I, WEIGHT_STAGES, IS_GATED, BARRIER)
    begin_sums(BLOCK_R * N * 4, SPLITS)
    first_inner = rank * (I // SPLITS)
    begin_weights(
        rows, weights, weight_ptr, row_bars, weight_bars, weight_bufs, first_row, first_column, first_inner,
        NUM_CHUNKS, I, O, BLOCK_O, BLOCK_I, IS_EARLY, IS_GATED, PDL,
    )  # fmt: skip
    begin_rows(rows, row_bars, row_bufs, first_row, first_inner, BLOCK_I, IS_EARLY, PDL)
    row = first_row + gl.arange(0, BLOCK_R, gl.SliceLayout(1, STORED))
    column = first_column + gl.arange(0, BLOCK_O, gl.SliceLayout(0, STORED))
    is_in = (row < num_rows)[:, None] & (column < O)[None, :]
    out_at = out_ptr + row.to(gl.int64)[:, None] * out_stride + column[None, :]
    if IS_ADDED:
        prior = gl.load(out_at, mask=is_in, other=0.0)
    if squares_ptr is not None:
        squares = load_squares(squares_ptr, first_row, num_rows, I // CHUNK, BLOCK_R, SQUARES)
    out = multiply(
        rows, weights, row_bars, row_bufs, weight_bars, weight_bufs, first_row, first_column, first_inner,
        NUM_CHUNKS, BLOCK_R, BLOCK_I, IS_GATED, IS_SWAPPED, PRODUCT, MATRIX, N,
    )  # fmt: skip
    if squares_ptr is not None:
        factor = gl.convert_layout(gl.rsqrt(gl.sum(squares, 1) / I + eps), gl.SliceLayout(1, SUMMED))
    out = join(out, rank, SPLITS, SUMMED, IS_SWAPPED)
    if squares_ptr is not None:
        out = out * factor[:, None]
    if IS_GATED:
        out = _gated(out, BLOCK_R, BLOCK_O, GATE)
    if IS_ADDED:
        out = (gl.convert_layout(out, STORED) + prior.to(gl.float32)).to(rows.dtype)
    else:
        out = gl.convert_layout(out.to(rows.dtype), STORED)
    gl.store(out_at, out, mask=is_in)
    if squares_out_ptr is not None:
        _store_squares(squares_out_ptr, out, is_in, first_row, first_column, num_rows, O)
