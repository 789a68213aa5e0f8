"""Sums up a tile of logits that lies in shared memory: kernels/logit_summary.py in Gluon.

The tile lies in parts of neighbouring logits, rows of which four warps take block by block. Knows nothing
about how logits are computed.

Shapes: R rows, SUB rows of a block.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.counter_noise import hash_pairs, log2_of_word
from kernels.logit_chunks import clamp_logits
from kernels.logit_summary import load_wishes

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
HAS_ROW, HAS_BOUND, HAS_SUM = gl.constexpr(1), gl.constexpr(2), gl.constexpr(4)


@gluon.constexpr_function
def block_layout(num_columns, num_rows):
    """Return how four warps hold a block of one part: threads beside each other share a row."""
    lanes = 128 // num_rows
    return gl.BlockedLayout([1, num_columns // lanes], [32 // lanes, lanes], [4, 1], [1, 0])


@gluon.jit
def allocate_wishes(R: gl.constexpr, SUB: gl.constexpr):
    """Return room for what each row wants, by blocks of at most SUB: flags, its scale and its noise's key."""
    SIZE: gl.constexpr = min(SUB, R)
    flags = gl.allocate_shared_memory(gl.int32, [R // SIZE, SIZE], FLAT)
    scales = gl.allocate_shared_memory(gl.float32, [R // SIZE, SIZE], FLAT)
    return flags, scales, gl.allocate_shared_memory(gl.int64, [R // SIZE, SIZE], FLAT)


@gluon.jit
def keep_wishes(
    kept, rows, tables, first_row, num_rows, num_chunks,
    V: gl.constexpr, COLUMNS: gl.constexpr, IS_SAMPLED: gl.constexpr,
):  # fmt: skip
    """Fill the room for rows from the first one on; COLUMNS are those of a part."""
    flags, scales, keys = kept
    SUB: gl.constexpr = flags.shape[1]
    ROW: gl.constexpr = gl.SliceLayout(1, block_layout(COLUMNS // 2, SUB))
    for block in range(flags.shape[0]):
        row = first_row + block * SUB + gl.arange(0, SUB, ROW)
        is_live, wants_bound, wants_sum, scale, key = load_wishes(
            row, *rows, *tables, num_rows, V, num_chunks, IS_SAMPLED
        )
        wants = HAS_BOUND * wants_bound.to(gl.int32) + HAS_SUM * wants_sum.to(gl.int32)
        flags.index(block).store(HAS_ROW * is_live.to(gl.int32) + wants)
        scales.index(block).store(scale)
        keys.index(block).store(key.to(gl.int64))


@gluon.jit
def summarize_tile(
    room, kept, outs, tile, first_row, num_rows, first, step, V: gl.constexpr, IS_SAMPLED: gl.constexpr
):  # fmt: skip
    """Write what is to be known of a tile's logits, a piece: of every so many-th block from the first on.

    The room's rows are those from first_row on.
    """
    COLUMNS: gl.constexpr = room.shape[2]
    SUB: gl.constexpr = kept[0].shape[1]
    ROW: gl.constexpr = gl.SliceLayout(1, block_layout(COLUMNS // 2, SUB))
    num_blocks = gl.minimum(gl.cdiv(num_rows - first_row, SUB), kept[0].shape[0])
    for block in range(first, num_blocks, step):
        row = first_row + block * SUB + gl.arange(0, SUB, ROW)
        place = row * (V // (room.shape[0] * COLUMNS)) + tile
        flags, scale = kept[0].index(block).load(ROW), kept[1].index(block).load(ROW)
        key = kept[2].index(block).load(ROW).to(gl.uint64)
        maximum, lowered = _extremes(room, block, tile, scale, key, IS_SAMPLED)
        gl.store(outs[0] + place, maximum, mask=(flags & HAS_ROW) != 0)
        if IS_SAMPLED:
            gl.store(outs[1] + place, -lowered, mask=(flags & HAS_BOUND) != 0)
            if gl.max(flags & HAS_SUM, 0) > 0:
                total = _sum_weights(room, block, maximum, scale)
                gl.store(outs[2] + place, total, mask=(flags & HAS_SUM) != 0)


@gluon.jit
def _load_pairs(room, PART: gl.constexpr, block, SUB: gl.constexpr):
    """Return a block's numbers in one part of the room: those of even ids and those of odd ones."""
    COLUMNS: gl.constexpr = room.shape[2]
    HALF: gl.constexpr = block_layout(COLUMNS // 2, SUB)
    blocks = room.index(PART)._reinterpret(room.dtype, [room.shape[1] // SUB, SUB, COLUMNS], room.layout)
    numbers = gl.reshape(blocks.index(block).load(block_layout(COLUMNS, SUB)), (SUB, COLUMNS // 2, 2))
    even, odd = gl.split(numbers)
    even = gl.convert_layout(even, HALF, assert_trivial=True)
    odd = gl.convert_layout(odd, HALF, assert_trivial=True)
    return even.to(gl.float32), odd.to(gl.float32)


@gluon.jit
def _extremes(room, block, tile, scale, key, IS_SAMPLED: gl.constexpr):
    """Return the largest logits of a block's rows, and minus what no token reaches, noise included."""
    PARTS: gl.constexpr = room.shape[0]
    PAIRS: gl.constexpr = room.shape[2] // 2
    SUB: gl.constexpr = scale.shape[0]
    HALF: gl.constexpr = block_layout(PAIRS, SUB)
    maximum = gl.full((SUB,), float("-inf"), gl.float32, gl.SliceLayout(1, HALF))
    lowered = gl.full((SUB,), float("inf"), gl.float32, gl.SliceLayout(1, HALF))
    for part in gl.static_range(PARTS):
        even, odd = _load_pairs(room, part, block, SUB)
        maximum = gl.maximum(maximum, gl.max(gl.maximum(even, odd), 1))
        if IS_SAMPLED:
            pairs = (tile * PARTS + part) * PAIRS + gl.arange(0, PAIRS, gl.SliceLayout(0, HALF))
            bits = hash_pairs(key[:, None], pairs[None, :])
            even = log2_of_word((bits >> 32).to(gl.uint32)) + even * -scale[:, None]
            odd = log2_of_word(bits.to(gl.uint32)) + odd * -scale[:, None]
            lowered = gl.minimum(lowered, gl.min(gl.minimum(even, odd), 1))
    return clamp_logits(maximum), lowered


@gluon.jit
def _sum_weights(room, block, maximum, scale):
    """Return the weights of a block's rows, relative to their largest logit's."""
    PARTS: gl.constexpr = room.shape[0]
    SUB: gl.constexpr = scale.shape[0]
    total = gl.full((SUB,), 0.0, gl.float32, gl.SliceLayout(1, block_layout(room.shape[2] // 2, SUB)))
    for part in gl.static_range(PARTS):
        even, odd = _load_pairs(room, part, block, SUB)
        even = gl.exp2((clamp_logits(even) - maximum[:, None]) * scale[:, None])
        odd = gl.exp2((clamp_logits(odd) - maximum[:, None]) * scale[:, None])
        total += gl.sum(even + odd, 1)
    return total
