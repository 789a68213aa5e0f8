"""The Gluon kernel of hopper_heads: one head of some rows a program, or a cluster of programs.

Weights wait in shared memory before the kernel in front has ended, as in hopper_projection_kernel, and in
registers what else does not come from it: where rows go, and their angles. What follows the product is what
qkv_store_kernel does, rounded at the same places. Knows nothing about models.

Shapes: R rows, I inputs, O = (H + 2 * K) * D outputs, H query heads, K KV heads, D head dim: 128. A program
takes BLOCK_R rows, BLOCK_I inputs at a time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.cluster_sum import begin_sums, cluster_rank
from kernels.hopper_projection_kernel import (
    CHUNK,
    allocate_buffers,
    begin_rows,
    begin_weights,
    join,
    load_squares,
    multiply,
    place_tile,
)
from kernels.large_product import halves
from kernels.large_qkv_kernel import HEAD_DIM, load_angles, load_head_weight, rotate


@gluon.jit
def _place_rows(
    outs, slots_ptr, out_stride, head, first_row, num_rows,
    H: gl.constexpr, K: gl.constexpr, R: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Return where a head's numbers go, or COLUMNS of them, and which rows do."""
    out_ptr, key_ptr, value_ptr = outs
    row = first_row + gl.arange(0, R, gl.SliceLayout(1, LAYOUT))
    is_in = row < num_rows
    slot = gl.load(slots_ptr + row, mask=is_in, other=-1).to(gl.int64)
    at_ptr, first, start = out_ptr, head * HEAD_DIM, row.to(gl.int64) * out_stride
    if head >= H:
        # int64: it passes 2**31 in a large cache.
        at_ptr, first, start = key_ptr, first - H * HEAD_DIM, slot * (K * HEAD_DIM)
        is_in = is_in & (slot >= 0)
        if head >= H + K:
            at_ptr, first = value_ptr, first - K * HEAD_DIM
    column = first + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    return at_ptr + start[:, None] + column[None, :], is_in[:, None]


@gluon.jit
def _load_constants(
    positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, head, first_row, num_rows,
    H: gl.constexpr, K: gl.constexpr, R: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Return the angles of some rows, and the weight of a head's norm, if it has one."""
    num_rotated = gl.where(head < H + K, num_rows, 0)
    angles = load_angles(positions_ptr, cos_sin_ptr, first_row, num_rotated, R, LAYOUT)
    weight = angles
    if q_weight_ptr is not None:
        weight_ptr = q_weight_ptr
        if head >= H:
            weight_ptr = k_weight_ptr
        weight = load_head_weight(weight_ptr, LAYOUT)
    return angles, weight


@gluon.jit
def _whole(low, high, LAYOUT: gl.constexpr):
    """Return rows of which these are the halves: a thread's own numbers."""
    numbers = gl.permute(gl.join(low, high), (0, 2, 1))
    return gl.convert_layout(gl.reshape(numbers, (low.shape[0], HEAD_DIM)), LAYOUT, assert_trivial=True)


@gluon.jit
def _leave_head(
    numbers, angles, weight, eps, is_rotated, at, is_in,
    HAS_NORM: gl.constexpr, COLUMNS: gl.constexpr,
    WHOLE: gl.constexpr, HALF: gl.constexpr, STORED: gl.constexpr,
):  # fmt: skip
    """Write a head's rows; of a value they are what they are."""
    if is_rotated:
        low, high = rotate(numbers.to(gl.float32), angles, weight, eps, HAS_NORM, HALF)
        low, high = low.to(numbers.dtype), high.to(numbers.dtype)
    else:
        low, high = halves(numbers, HALF)
    if COLUMNS == HEAD_DIM:
        gl.store(at, gl.convert_layout(_whole(low, high, WHOLE), STORED), mask=is_in)
    else:
        gl.store(at, gl.convert_layout(low, STORED), mask=is_in)
        gl.store(at + HEAD_DIM // 2, gl.convert_layout(high, STORED), mask=is_in)


@gluon.jit(do_not_specialize=["num_rows"])
def hopper_heads_kernel(
    rows, weights, weight_ptr, squares_ptr, positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr,
    key_ptr, value_ptr, slots_ptr, out_ptr, out_stride, num_rows, eps, head_eps,
    I: gl.constexpr, H: gl.constexpr, K: gl.constexpr,  # noqa: E741
    BLOCK_R: gl.constexpr, BLOCK_I: gl.constexpr, SPLITS: gl.constexpr,
    ROW_STAGES: gl.constexpr, WEIGHT_STAGES: gl.constexpr, IS_EARLY: gl.constexpr, IS_SWAPPED: gl.constexpr,
    PDL: gl.constexpr, BARRIER: gl.constexpr, PRODUCT: gl.constexpr, SUMMED: gl.constexpr,
    HALF: gl.constexpr, STORED: gl.constexpr, SQUARES: gl.constexpr, MATRIX: gl.constexpr,
):  # fmt: skip
    """One program: one head of BLOCK_R rows, over one split of the inputs."""
    NUM_CHUNKS: gl.constexpr = I // SPLITS // BLOCK_I
    O: gl.constexpr = (H + 2 * K) * HEAD_DIM  # noqa: E741
    # Stored at once, or, as Triton 3.6 cannot join what lies over a cluster, by halves: 0.1 to 0.8 us slower.
    COLUMNS: gl.constexpr = HEAD_DIM if SPLITS == 1 else HEAD_DIM // 2
    first_row, first_column = place_tile(num_rows, BLOCK_R, HEAD_DIM)
    head = first_column // HEAD_DIM
    rank = cluster_rank() if SPLITS > 1 else 0
    row_bars, row_bufs = allocate_buffers(rows, BLOCK_R, BLOCK_I, ROW_STAGES, False, BARRIER)
    weight_bars, weight_bufs = allocate_buffers(weights, HEAD_DIM, BLOCK_I, WEIGHT_STAGES, False, BARRIER)
    begin_sums(BLOCK_R * HEAD_DIM * 4, SPLITS)
    first_inner = rank * (I // SPLITS)
    begin_weights(
        rows, weights, weight_ptr, row_bars, weight_bars, weight_bufs, first_row, first_column, first_inner,
        NUM_CHUNKS, I, O, HEAD_DIM, BLOCK_I, IS_EARLY, False, PDL,
    )  # fmt: skip
    at, is_in = _place_rows(
        (out_ptr, key_ptr, value_ptr), slots_ptr, out_stride, head, first_row, num_rows,
        H, K, BLOCK_R, COLUMNS, STORED,
    )  # fmt: skip
    angles, weight = _load_constants(
        positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr, head, first_row, num_rows, H, K, BLOCK_R, HALF
    )
    begin_rows(rows, row_bars, row_bufs, first_row, first_inner, BLOCK_I, IS_EARLY, PDL)
    squares = load_squares(squares_ptr, first_row, num_rows, I // CHUNK, BLOCK_R, SQUARES)
    product = multiply(
        rows, weights, row_bars, row_bufs, weight_bars, weight_bufs, first_row, first_column, first_inner,
        NUM_CHUNKS, BLOCK_R, BLOCK_I, False, IS_SWAPPED, PRODUCT, MATRIX, HEAD_DIM,
    )  # fmt: skip
    factor = gl.convert_layout(gl.rsqrt(gl.sum(squares, 1) / I + eps), gl.SliceLayout(1, SUMMED))
    product = join(product, rank, SPLITS, SUMMED, IS_SWAPPED) * factor[:, None]
    _leave_head(
        product.to(rows.dtype), angles, weight, head_eps, head < H + K, at, is_in, q_weight_ptr is not None,
        COLUMNS, SUMMED, HALF, STORED,
    )  # fmt: skip
