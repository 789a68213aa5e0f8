"""Sums up a tile of logits that lies in shared memory: kernels/logit_summary.py in Gluon.

The tile lies in parts of neighbouring logits, rows of which four warps take block by block. Of a row without
a limit, or one that takes its largest logit, the sampler reads the best piece only: a tile's logits leave for
memory where no tile so far was better. Knows nothing about how logits are computed.

Shapes: R rows, SUB rows of a block.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.counter_noise import hash_pairs, log2_of_word
from kernels.logit_chunks import clamp_logits
from kernels.logit_summary import lift, load_wishes, weigh

ONE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
"""How each thread holds the same number."""
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
HAS_ROW, HAS_BOUND, HAS_SUM = gl.constexpr(1), gl.constexpr(2), gl.constexpr(4)
HAS_LIFT, HAS_LIMIT = gl.constexpr(8), gl.constexpr(16)
SLACK, LEAST_SLACK = gl.constexpr(2.0**-20), gl.constexpr(1e-4)
"""By how much a value may be too low: the sampler takes logits from the row's largest one on, which rounds
differently."""


@gluon.constexpr_function
def block_layout(num_columns, num_rows):
    """Return how four warps hold a block of one part: threads beside each other share a row."""
    lanes = 128 // num_rows
    return gl.BlockedLayout([1, num_columns // lanes], [32 // lanes, lanes], [4, 1], [1, 0])


@gluon.constexpr_function
def rows_layout(num_columns, num_rows):
    """Return how they hold a number for each of a block's rows; of pairs of logits each is one column."""
    return gl.SliceLayout(1, block_layout(num_columns // 2, num_rows))


@gluon.jit
def allocate_wishes(R: gl.constexpr, SUB: gl.constexpr):
    """Return room for what each row wants, by blocks of at most SUB: flags, its scale and its noise's key.

    And for the best value so far, and for the flags of each block's rows together.
    """
    SIZE: gl.constexpr = min(SUB, R)
    together = gl.allocate_shared_memory(gl.int32, [R // SIZE, 1], FLAT)
    flags = gl.allocate_shared_memory(gl.int32, [R // SIZE, SIZE], FLAT)
    scales = gl.allocate_shared_memory(gl.float32, [R // SIZE, SIZE], FLAT)
    keys = gl.allocate_shared_memory(gl.int64, [R // SIZE, SIZE], FLAT)
    best = gl.allocate_shared_memory(gl.float32, [R // SIZE, SIZE], FLAT)
    return flags, scales, keys, best, together


@gluon.jit
def keep_wishes(
    kept, rows, tables, first_row, num_rows, num_chunks,
    V: gl.constexpr, COLUMNS: gl.constexpr, IS_SAMPLED: gl.constexpr,
):  # fmt: skip
    """Fill the room for rows from the first one on; COLUMNS are those of a part."""
    flags, scales, keys, best, together = kept
    SUB: gl.constexpr = flags.shape[1]
    ROW: gl.constexpr = rows_layout(COLUMNS, SUB)
    for block in range(flags.shape[0]):
        row = first_row + block * SUB + gl.arange(0, SUB, ROW)
        is_live, is_drawn, wants_lift, wants_bound, wants_sum, scale, key = load_wishes(
            row, *rows, *tables, num_rows, V, num_chunks, IS_SAMPLED
        )
        wants = HAS_BOUND * wants_bound.to(gl.int32) + HAS_SUM * wants_sum.to(gl.int32)
        wants += HAS_LIFT * wants_lift.to(gl.int32) + HAS_LIMIT * (is_drawn & ~wants_lift).to(gl.int32)
        flags.index(block).store(HAS_ROW * is_live.to(gl.int32) + wants)
        wants = gl.max(wants & HAS_BOUND, 0) + gl.max(wants & (HAS_LIFT | HAS_SUM), 0)
        together.index(block).store(gl.full((1,), 0, gl.int32, ONE) + wants)
        best.index(block).store(gl.full((SUB,), float("-inf"), gl.float32, ROW))
        scales.index(block).store(scale)
        keys.index(block).store(key.to(gl.int64))


@gluon.jit
def summarize_tile(
    room, kept, outs, logits, tile, first_row, num_rows, first, step,
    V: gl.constexpr, IS_SAMPLED: gl.constexpr,
):  # fmt: skip
    """Write what is to be known of a tile's logits, a piece: of every so many-th block from the first on.

    The room's rows are those from first_row on. Logits lie at a pointer, rows at such a distance.
    """
    COLUMNS: gl.constexpr = room.shape[2]
    SUB: gl.constexpr = kept[0].shape[1]
    ROW: gl.constexpr = rows_layout(COLUMNS, SUB)
    num_blocks = gl.minimum(gl.cdiv(num_rows - first_row, SUB), kept[0].shape[0])
    for block in range(first, num_blocks, step):
        row = first_row + block * SUB + gl.arange(0, SUB, ROW)
        place = row * (V // (room.shape[0] * COLUMNS)) + tile
        flags, scale = kept[0].index(block).load(ROW), kept[1].index(block).load(ROW)
        key = kept[2].index(block).load(ROW).to(gl.uint64)
        maximum = _maximum(room, block, SUB)
        gl.store(outs[0] + place, maximum, mask=(flags & HAS_ROW) != 0)
        value, slack = maximum, gl.full((SUB,), 0.0, gl.float32, ROW)
        if IS_SAMPLED:
            wants = gl.max(kept[4].index(block).load(ONE), 0)
            if wants & HAS_BOUND:
                lowered = _lowered(room, block, tile, scale, key)
                gl.store(outs[1] + place, -lowered, mask=(flags & HAS_BOUND) != 0)
            if wants & (HAS_LIFT | HAS_SUM):
                total = _sum_weights(room, block, maximum, scale)
                above = lift(total, key, tile + gl.full((SUB,), 0, gl.int32, ROW))
                gl.store(outs[1] + place, above, mask=(flags & HAS_LIFT) != 0)
                gl.store(outs[2] + place, total, mask=(flags & HAS_SUM) != 0)
                has_lift = (flags & HAS_LIFT) != 0
                value = gl.where(has_lift, maximum * scale + above, value)
                slack = gl.where(has_lift, gl.abs(maximum * scale) * SLACK + LEAST_SLACK, slack)
        best = kept[3].index(block).load(ROW)
        kept[3].index(block).store(gl.maximum(best, value))
        is_written = ((flags & HAS_ROW) != 0) & (((flags & HAS_LIMIT) != 0) | (value >= best - slack))
        _write_rows(room, block, logits, tile, row, is_written)


@gluon.jit
def _load_pairs(room, PART: gl.constexpr, block, SUB: gl.constexpr):
    """Return a block's numbers in one part of the room: those of even ids and those of odd ones."""
    COLUMNS: gl.constexpr = room.shape[2]
    HALF: gl.constexpr = block_layout(COLUMNS // 2, SUB)
    numbers = _block_of(room, PART, block, SUB).load(block_layout(COLUMNS, SUB))
    numbers = gl.reshape(numbers, (SUB, COLUMNS // 2, 2))
    even, odd = gl.split(numbers)
    even = gl.convert_layout(even, HALF, assert_trivial=True)
    odd = gl.convert_layout(odd, HALF, assert_trivial=True)
    return even.to(gl.float32), odd.to(gl.float32)


@gluon.jit
def _write_rows(room, block, logits, tile, row, is_written):
    """Write a block's logits of some rows."""
    PARTS: gl.constexpr = room.shape[0]
    COLUMNS: gl.constexpr = room.shape[2]
    SUB: gl.constexpr = row.shape[0]
    LAYOUT: gl.constexpr = block_layout(COLUMNS, SUB)
    out_ptr, stride = logits
    row = gl.convert_layout(row, gl.SliceLayout(1, LAYOUT), assert_trivial=True).to(gl.int64)
    is_written = gl.convert_layout(is_written, gl.SliceLayout(1, LAYOUT), assert_trivial=True)
    for part in gl.static_range(PARTS):
        numbers = _block_of(room, part, block, SUB).load(LAYOUT)
        column = (tile * PARTS + part) * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
        gl.store(out_ptr + row[:, None] * stride + column[None, :], numbers, mask=is_written[:, None])


@gluon.jit
def _block_of(room, PART: gl.constexpr, block, SUB: gl.constexpr):
    """Return a block's rows in one part of the room."""
    shape: gl.constexpr = [room.shape[1] // SUB, SUB, room.shape[2]]
    return room.index(PART)._reinterpret(room.dtype, shape, room.layout).index(block)


@gluon.jit
def _maximum(room, block, SUB: gl.constexpr):
    """Return the largest logits of a block's rows."""
    PARTS: gl.constexpr = room.shape[0]
    maximum = gl.full((SUB,), float("-inf"), gl.float32, rows_layout(room.shape[2], SUB))
    for part in gl.static_range(PARTS):
        even, odd = _load_pairs(room, part, block, SUB)
        maximum = gl.maximum(maximum, gl.max(gl.maximum(even, odd), 1))
    return clamp_logits(maximum)


@gluon.jit
def _lowered(room, block, tile, scale, key):
    """Return minus what no token of a block's rows reaches, noise included."""
    PARTS: gl.constexpr = room.shape[0]
    PAIRS: gl.constexpr = room.shape[2] // 2
    SUB: gl.constexpr = scale.shape[0]
    HALF: gl.constexpr = block_layout(PAIRS, SUB)
    lowered = gl.full((SUB,), float("inf"), gl.float32, rows_layout(room.shape[2], SUB))
    for part in gl.static_range(PARTS):
        even, odd = _load_pairs(room, part, block, SUB)
        pairs = (tile * PARTS + part) * PAIRS + gl.arange(0, PAIRS, gl.SliceLayout(0, HALF))
        bits = hash_pairs(key[:, None], pairs[None, :])
        even = log2_of_word((bits >> 32).to(gl.uint32)) + even * -scale[:, None]
        odd = log2_of_word(bits.to(gl.uint32)) + odd * -scale[:, None]
        lowered = gl.minimum(lowered, gl.min(gl.minimum(even, odd), 1))
    return lowered


@gluon.jit
def _sum_weights(room, block, maximum, scale):
    """Return the weights of a block's rows, relative to their largest logit's."""
    SUB: gl.constexpr = scale.shape[0]
    PARTS: gl.constexpr = room.shape[0]
    total = gl.full((SUB,), 0.0, gl.float32, rows_layout(room.shape[2], SUB))
    for part in gl.static_range(PARTS):
        even, odd = _load_pairs(room, part, block, SUB)
        even = weigh(even - maximum[:, None], scale[:, None])
        odd = weigh(odd - maximum[:, None], scale[:, None])
        total += gl.sum(even + odd, 1)
    return total
