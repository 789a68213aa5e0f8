"""The Gluon kernel of large_qkv: the QKV product, and all that stands between it and attention.

A product's columns are two heads, whole: they are normalized (where the model has such norms), rotated, and
written to where attention reads them; keys and values to their cache cells, too. Knows nothing about
requests or blocks: a slot is a cell's number, counted over the whole cache.

Shapes: R rows, I inputs, H query heads, K KV heads, D head dim: 128.
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

HEAD_DIM = gl.constexpr(128)


@gluon.jit
def load_angles(positions_ptr, cos_sin_ptr, first_row, num_rows, ROWS: gl.constexpr, layout: gl.constexpr):
    """Return these rows' cosines and sines."""
    HALF: gl.constexpr = HEAD_DIM // 2
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
    position = gl.maximum(gl.load(positions_ptr + row, mask=row < num_rows, other=0), 0)
    at = cos_sin_ptr + (position.to(gl.int64) * HEAD_DIM)[:, None] + column[None, :]
    return gl.load(at).to(gl.float32), gl.load(at + HALF).to(gl.float32)


@gluon.jit
def load_head_weight(weight_ptr, layout: gl.constexpr):
    """Return the lower and the upper half of the weight of heads' norm."""
    at = weight_ptr + gl.arange(0, HEAD_DIM // 2, layout=gl.SliceLayout(0, layout))
    return gl.load(at), gl.load(at + HEAD_DIM // 2)


@gluon.jit
def rotate(numbers, angles, weight, eps, HAS_NORM: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the lower and the upper half of one head's rows, in LAYOUT, ready for attention."""
    cos, sin = angles
    low, high = halves(numbers, LAYOUT)
    if HAS_NORM:
        squares = gl.sum(low * low, 1) + gl.sum(high * high, 1)
        scale = gl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        low = low * scale * weight[0].to(gl.float32)[None, :]
        high = high * scale * weight[1].to(gl.float32)[None, :]
    return low * cos - high * sin, high * cos + low * sin


@gluon.jit
def _store_cells(room, cache_ptr, slot, first_column, CELL: gl.constexpr, layout: gl.constexpr):
    """Write half a head's rows to their cells; a negative slot skips its row."""
    column = first_column + gl.arange(0, room.shape[1], layout=gl.SliceLayout(0, layout))
    # int64: it passes 2**31 in a large cache.
    at = cache_ptr + (slot.to(gl.int64) * CELL)[:, None] + column[None, :]
    gl.store(at, room.load(layout), mask=(slot >= 0)[:, None])


@gluon.jit
def _copy_head(out, first_row, first_column, low_room, high_room):
    """Have the copy engine write one head's rows, where they have a place."""
    if out is not None:
        tma.async_copy_shared_to_global(out, [first_row, first_column], low_room)
        tma.async_copy_shared_to_global(out, [first_row, first_column + HEAD_DIM // 2], high_room)


@gluon.jit
def _leave_head(
    low, high, outs, caches, slot, rooms, first_row, head,
    H: gl.constexpr, K: gl.constexpr, cell_layout: gl.constexpr,
):  # fmt: skip
    """Write one head's rows, once what was last written from the same shared memory has left it."""
    q_out, kv_out = outs
    low_room, high_room = rooms
    HALF: gl.constexpr = HEAD_DIM // 2
    tma.store_wait(0)
    low_room.store(low.to(low_room.dtype))
    high_room.store(high.to(low_room.dtype))
    fence_async_shared()
    first_column = head * HEAD_DIM
    if head < H:
        _copy_head(q_out, first_row, first_column, low_room, high_room)
    else:
        _copy_head(kv_out, first_row, first_column, low_room, high_room)
        cache_ptr, first = caches[0], first_column - H * HEAD_DIM
        if head >= H + K:
            cache_ptr, first = caches[1], first_column - (H + K) * HEAD_DIM
        _store_cells(low_room, cache_ptr, slot, first, K * HEAD_DIM, cell_layout)
        _store_cells(high_room, cache_ptr, slot, first + HALF, K * HEAD_DIM, cell_layout)


@gluon.jit
def _leave_tile(
    product, scale, angles, norms, outs, caches, slot, rooms, first_row, head,
    H: gl.constexpr, K: gl.constexpr, cell_layout: gl.constexpr,
):  # fmt: skip
    """Write the two heads of a tile, ready for attention."""
    q_weight_ptr, k_weight_ptr, eps = norms
    head_layout: gl.constexpr = product_layout(HEAD_DIM)
    half_layout: gl.constexpr = product_layout(HEAD_DIM // 2)
    HAS_NORM: gl.constexpr = q_weight_ptr is not None
    if head < H + K:
        numbers, weight = product, angles
        if HAS_NORM:
            weight_ptr = q_weight_ptr
            if head >= H:
                weight_ptr = k_weight_ptr
            weight = load_head_weight(weight_ptr, half_layout)
            # A head's norm takes a row's factor away, but for what is added to the mean of squares.
            head_eps = gl.convert_layout(
                eps / (scale * scale), gl.SliceLayout(1, half_layout), assert_trivial=True
            )
        else:
            numbers, head_eps = product * scale[:, None], eps
        first, second = halves(numbers, head_layout)
        low, high = rotate(first, angles, weight, head_eps, HAS_NORM, half_layout)
        _leave_head(low, high, outs, caches, slot, rooms, first_row, head, H, K, cell_layout)
        low, high = rotate(second, angles, weight, head_eps, HAS_NORM, half_layout)
        _leave_head(low, high, outs, caches, slot, rooms, first_row, head + 1, H, K, cell_layout)
    else:
        first, second = halves(product * scale[:, None], head_layout)
        low, high = halves(first, half_layout)
        _leave_head(low, high, outs, caches, slot, rooms, first_row, head, H, K, cell_layout)
        low, high = halves(second, half_layout)
        _leave_head(low, high, outs, caches, slot, rooms, first_row, head + 1, H, K, cell_layout)


@gluon.jit
def _head_tiles(
    outs, caches, constants, norms, ring, room, num_rows, span, eps,
    I: gl.constexpr, H: gl.constexpr, K: gl.constexpr, GROUP: gl.constexpr, PART: gl.constexpr,  # noqa: E741
    LEAD: gl.constexpr,
):  # fmt: skip
    """Multiply, and leave two heads a tile. What a span's tiles share is loaded in front of it."""
    positions_ptr, cos_sin_ptr, slot_ptr = constants
    BLOCK_R: gl.constexpr = ring[0].shape[1]
    ROWS: gl.constexpr = BLOCK_R // NUM_CONSUMERS
    COLUMNS: gl.constexpr = (H + 2 * K) // 2
    layout: gl.constexpr = product_layout(2 * HEAD_DIM)
    half_layout: gl.constexpr = product_layout(HEAD_DIM // 2)
    cell_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rooms = (room.index(2 * PART), room.index(2 * PART + 1))
    stage, phase, turn_phase = 0, 0, 0
    scale = gl.full((ROWS,), 1.0, gl.float32, layout=gl.SliceLayout(1, layout))
    num = num_spans(num_rows, span, BLOCK_R, COLUMNS)
    for index in range(gl.program_id(0), num, gl.num_programs(0)):
        row_block, first_block = place_span(index, num_rows, span, BLOCK_R, COLUMNS, GROUP)
        first_row = row_block * BLOCK_R + PART * ROWS
        angles = load_angles(positions_ptr, cos_sin_ptr, first_row, num_rows, ROWS, half_layout)
        row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, cell_layout))
        slot = gl.load(slot_ptr + row, mask=row < num_rows, other=-1).to(gl.int32)
        for column_block in range(first_block, first_block + span):
            product, scale, stage, phase = multiply(
                ring, stage, phase, turn_phase, scale, column_block == first_block, eps, layout, I, PART, LEAD
            )
            turn_phase = turn_phase ^ 1
            _leave_tile(
                product, scale, angles, norms, outs, caches, slot, rooms, first_row, 2 * column_block,
                H, K, cell_layout,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_rows", "span"])
def large_qkv_kernel(
    x, weight, q_out, kv_out, positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr,
    key_cache_ptr, value_cache_ptr, slot_ptr, num_rows, span, eps, head_eps,
    I: gl.constexpr, H: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,  # noqa: E741
    LEAD: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Tile after tile of two heads; weight is seen as ((H + 2 * K) / 2, 2 * D, I).

    A weight without query heads has no q_out; without kv_out keys and values go to their cells only.
    """
    ring = make_ring(x, weight, STAGES)
    SHAPE: gl.constexpr = [2 * NUM_CONSUMERS, x.block_type.shape[0] // NUM_CONSUMERS, HEAD_DIM // 2]
    room = gl.allocate_shared_memory(x.dtype, SHAPE, x.layout)
    outs, caches = (q_out, kv_out), (key_cache_ptr, value_cache_ptr)
    norms, constants = (q_weight_ptr, k_weight_ptr, head_eps), (positions_ptr, cos_sin_ptr, slot_ptr)
    COLUMNS: gl.constexpr = (H + 2 * K) // 2
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    gl.warp_specialize(
        [
            (
                _head_tiles,
                (outs, caches, constants, norms, ring, room, num_rows, span, eps, I, H, K, GROUP, 0, LEAD),
            ),
            (
                _head_tiles,
                (outs, caches, constants, norms, ring, room, num_rows, span, eps, I, H, K, GROUP, 1, LEAD),
            ),
            (copy_tiles, (x, weight, ring, num_rows, span, I, COLUMNS, GROUP, False)),
        ],
        [4, 1],
        [232, 40],
    )
