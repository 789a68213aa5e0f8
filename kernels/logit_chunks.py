"""Pieces of kernels that read a row of logits chunk by chunk.

A chunk is CHUNK neighbouring logits. Knows nothing about how tokens are chosen. Functions are inlined
into the kernels that call them.

Shapes: C chunks of a row, padded to a power of two; D chunks that are loaded at once.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.interpreter import IS_INTERPRETED
from kernels.step_times import tell_times

HIGHEST_LOGIT = tl.constexpr(1e18)
LOWEST_LOGIT = tl.constexpr(-1e18)
"""Logits are clamped to what stays finite over SMALLEST_TEMPERATURE; NaN counts as the lowest."""
SMALLEST_TEMPERATURE = tl.constexpr(1e-20)
LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_INFINITY = tl.constexpr(float("-inf"))
NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait for the kernels before, where this one may have started early, and let the next one start."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def load_maxima(maximum_ptr, chunks_C, num_pieces, PIECES: tl.constexpr):
    """Return the largest of each chunk's pieces, of which a row has so many; -inf where there is no chunk."""
    if PIECES == 1:
        maxima_C = tl.load(maximum_ptr + chunks_C, mask=chunks_C < num_pieces, other=MINUS_INFINITY)
    else:
        pieces = chunks_C[:, None] * PIECES + tl.arange(0, PIECES)[None, :]
        maxima_C = tl.max(tl.load(maximum_ptr + pieces, mask=pieces < num_pieces, other=MINUS_INFINITY), 1)
    return maxima_C


@triton.jit
def load_logits(raw_ptr, edited_ptr, is_edited, ids, is_in, HAS_EDITS: tl.constexpr):
    """Return the row's logits in float32, all finite; edited ones where the row has them."""
    if HAS_EDITS:
        if is_edited != 0:
            logits = tl.load(edited_ptr + ids, mask=is_in, other=MINUS_INFINITY)
        else:
            logits = tl.load(raw_ptr + ids, mask=is_in, other=MINUS_INFINITY).to(tl.float32)
    else:
        logits = tl.load(raw_ptr + ids, mask=is_in, other=MINUS_INFINITY).to(tl.float32)
    return clamp_logits(logits)


@triton.jit
def clamp_logits(logits):
    """Return the logits without infinities and NaN."""
    if IS_INTERPRETED:
        logits = tl.where(logits > LOWEST_LOGIT, logits, LOWEST_LOGIT)
    return tl.minimum(tl.maximum(logits, LOWEST_LOGIT), HIGHEST_LOGIT)


@triton.jit
def list_chunks(is_listed_C, list_ptr, NUM_CHUNKS_POW2: tl.constexpr):
    """Write the numbers of these chunks, ascending; return how many they are."""
    flags_C = is_listed_C.to(tl.int32)
    places_C = tl.cumsum(flags_C, 0) - 1
    # Nobody may still read the list before it, or read this one before it stands.
    tl.debug_barrier()
    tl.store(list_ptr + places_C, tl.arange(0, NUM_CHUNKS_POW2), mask=is_listed_C)
    tl.debug_barrier()
    return tl.sum(flags_C, 0)


@triton.jit
def load_listed(
    list_ptr, first, num_listed, raw_ptr, edited_ptr, is_edited, V, CHUNK: tl.constexpr,
    CHUNKS_AT_ONCE: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return (ids, logits, is_in) of the listed chunks from ``first`` on, each (D, CHUNK)."""
    places_D = first + tl.arange(0, CHUNKS_AT_ONCE)
    is_listed_D = places_D < num_listed
    chunks_D = tl.load(list_ptr + places_D, mask=is_listed_D, other=0)
    ids = chunks_D[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    is_in = is_listed_D[:, None] & (ids < V)
    return ids, load_logits(raw_ptr, edited_ptr, is_edited, ids, is_in, HAS_EDITS), is_in


@triton.jit
def measure_kept(
    limit, maximum, scale, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V,
    IS_STRICT: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr,
    CHUNKS_AT_ONCE: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the number and the weight of logits above a limit; not strict: at it, too.

    The weight is relative to that of the row's maximum. Sums run in an order that only the row decides.
    """
    is_listed_C = chunk_max_C > limit if IS_STRICT else chunk_max_C >= limit
    num_listed = list_chunks(is_listed_C, list_ptr, NUM_CHUNKS_POW2)
    num_kept = 0
    weight = 0.0
    for first in range(0, num_listed, CHUNKS_AT_ONCE):
        _, logits, is_in = load_listed(
            list_ptr, first, num_listed, raw_ptr, edited_ptr, is_edited, V, CHUNK, CHUNKS_AT_ONCE, HAS_EDITS
        )
        is_kept = is_in & (logits > limit if IS_STRICT else logits >= limit)
        num_kept += tl.sum(tl.sum(is_kept.to(tl.int32), 1), 0)
        weights = tl.where(is_kept, tl.exp2((logits - maximum) * scale), 0.0)
        weight += tl.sum(tl.sum(weights, 1), 0)
    return num_kept, weight


@triton.jit
def load_address(told_ptr):
    """Return where tokens are told; 0 where they are not. Behind the token it would be one more wait."""
    return tl.full((), 0, tl.int64) if told_ptr is None else tl.load(told_ptr)


@triton.jit
def write_token(
    token, row, lane, position, out_ptr, told_ptr, token_pool_ptr, token_pool_stride, address
):  # fmt: skip
    """Write a drawn token to the row's output, where it is told, by load_address, and to its lane's tokens.

    With the first row's token the step's times are told; what other rows take longer is seen as idle time.
    """
    tl.store(out_ptr + row, token)
    if told_ptr is not None:
        begin = tl.load(told_ptr + 1)
        tl.store(address.to(tl.pointer_type(tl.int32)) + row, token)
        if row == 0:
            tell_times(told_ptr, address, begin)
    tl.store(token_pool_ptr + lane.to(tl.int64) * token_pool_stride + position + 1, token)
