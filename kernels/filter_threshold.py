"""Finds what top_k, top_p and min_p keep of a row without sorting it, and draws where that is little.

The k-th largest of the chunks' maxima is not above the k-th largest logit, so few logits reach it:
they are gathered and ranked against each other. Where k is larger than the number of chunks, bisection
finds a limit that few reach. A row whose tokens are too many to be ranked is left to
kernels/argmax_sample.py. Ties with the last token kept are kept. Sums run in an order that only the
row decides. Knows nothing about edits of logits.

Shapes: R rows, V vocabulary, C chunks of a row, padded to a power of two, N candidates, J of them.
"""

import triton
import triton.language as tl

from kernels.counter_noise import gumbel_noise
from kernels.logit_chunks import (
    LOG2_E,
    LOWEST_LOGIT,
    MINUS_INFINITY,
    NO_ID,
    list_chunks,
    load_listed,
    load_maxima,
    measure_kept,
)  # fmt: skip

NUM_RIVALS = tl.constexpr(8)
"""Candidates that all others are compared with at once."""


@triton.jit
def draw_ranked(
    temperature, top_k, top_p, min_p, key, maximum, chunk_max_C, raw_ptr, edited_ptr, is_edited,
    chunk_max_ptr, chunk_sum_ptr, list_ptr, candidate_logits_ptr, candidate_ids_ptr, V, num_chunks,
    num_pieces, CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr,
    PIECES: tl.constexpr, MAX_CANDIDATES: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the token of a row with top_k or min_p; -1: they leave too many to be ranked."""
    has_k = (top_k > 0) & (top_k < V)
    lowest = lowest_of_min_p(min_p, maximum, temperature)
    limit = lowest
    if has_k:
        limit = _limit_of_candidates(
            top_k, maximum, chunk_max_C, chunk_max_ptr, num_chunks, list_ptr, raw_ptr, edited_ptr, is_edited,
            V, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, PIECES, MAX_CANDIDATES, HAS_EDITS,
        )  # fmt: skip
    num_candidates = _gather_candidates(
        limit, chunk_max_C, list_ptr, candidate_logits_ptr, candidate_ids_ptr, raw_ptr, edited_ptr, is_edited,
        V, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, MAX_CANDIDATES, HAS_EDITS,
    )  # fmt: skip
    token = -1
    if num_candidates <= MAX_CANDIDATES:
        total = sum_chunks(
            chunk_sum_ptr, chunk_max_ptr, maximum, temperature, num_pieces, NUM_CHUNKS_POW2 * PIECES
        )
        token = _draw_candidate(
            num_candidates, candidate_logits_ptr, candidate_ids_ptr, tl.where(has_k, top_k, V), has_k, top_p,
            lowest, total, maximum, temperature, key, MAX_CANDIDATES,
        )  # fmt: skip
    return token


@triton.jit
def _limit_of_candidates(
    top_k, maximum, chunk_max_C, chunk_max_ptr, num_chunks, list_ptr, raw_ptr, edited_ptr, is_edited, V,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, PIECES: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return a limit that at least k logits reach, and not many more."""
    if is_ranked(top_k, num_chunks):
        limit = _kth_of_chunks(
            top_k, chunk_max_C, chunk_max_ptr, num_chunks, tl.cdiv(V, CHUNK // PIECES), PIECES
        )
    else:
        limit, _ = bisect_kth(
            top_k, MAX_CANDIDATES, maximum, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V,
            CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
        )  # fmt: skip
    return limit


@triton.jit
def is_ranked(top_k, num_chunks):
    """Whether so many chunks' maxima bound the k-th largest logit that a row needs no bounds of noise."""
    return top_k <= num_chunks


@triton.jit
def lowest_of_min_p(min_p, maximum, temperature):
    """Return the lowest logit that min_p keeps."""
    lowest = maximum + temperature * tl.log(tl.maximum(min_p, 1e-37))
    return tl.where(min_p > 0, lowest, MINUS_INFINITY)


@triton.jit
def sum_chunks(chunk_sum_ptr, chunk_max_ptr, maximum, temperature, num_pieces, NUM_POW2: tl.constexpr):
    """Return the weight of a whole row, relative to its maximum's."""
    pieces = tl.arange(0, NUM_POW2)
    is_piece = pieces < num_pieces
    weights = tl.load(chunk_sum_ptr + pieces, mask=is_piece, other=0.0)
    distances = tl.load(chunk_max_ptr + pieces, mask=is_piece, other=0.0) - maximum
    return tl.sum(weights * tl.exp2(tl.where(is_piece, distances, 0.0) * (LOG2_E / temperature)), 0)


@triton.jit
def find_kth(
    top_k, maximum, scale, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V, CHUNK: tl.constexpr,
    NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the k-th largest logit and the weight of the k largest, relative to the maximum's."""
    kth, _ = bisect_kth(
        top_k, top_k, maximum, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V, CHUNK,
        NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
    )  # fmt: skip
    num_above, weight = measure_kept(
        kth, maximum, scale, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V, True, CHUNK,
        NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
    )  # fmt: skip
    return kth, weight + (top_k - num_above) * tl.exp2((kth - maximum) * scale)


@triton.jit
def bisect_kth(
    top_k, num_enough, maximum, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return a limit that at least k logits reach and at most num_enough, if there is one, and their number.

    There is none where too many logits tie at the k-th: then the limit is the k-th itself.
    """
    low = _key_of(tl.full((), LOWEST_LOGIT, tl.float32))
    high = _key_of(maximum)
    num_reaching = V
    while (low < high) & (num_reaching > num_enough):
        middle = low + (high - low + 1) // 2
        count, _ = measure_kept(
            _logit_of(middle), maximum, 0.0, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V,
            False, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
        )  # fmt: skip
        if count >= top_k:
            low = middle
            num_reaching = count
        else:
            high = middle - 1
    return _logit_of(low), num_reaching


@triton.jit
def _key_of(logit):
    """Return an int64 that orders as the float does."""
    bits = logit.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _logit_of(key):
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _kth_of_chunks(top_k, chunk_max_C, chunk_max_ptr, num_chunks, num_pieces, PIECES: tl.constexpr):
    """Return the k-th largest of the chunks' maxima."""
    num_above_C = tl.zeros(chunk_max_C.shape, tl.int32)
    for first in range(0, num_chunks, NUM_RIVALS):
        rivals_J = first + tl.arange(0, NUM_RIVALS)
        rival_max_J = load_maxima(chunk_max_ptr, rivals_J, num_pieces, PIECES)
        num_above_C += tl.sum((rival_max_J[None, :] > chunk_max_C[:, None]).to(tl.int32), 1)
    return tl.min(tl.where(num_above_C < top_k, chunk_max_C, float("inf")), 0)


@triton.jit
def _gather_candidates(
    limit, chunk_max_C, list_ptr, logits_ptr, ids_ptr, raw_ptr, edited_ptr, is_edited, V,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Write the logits that reach the limit, and their ids; return how many reach it."""
    num_listed = list_chunks(chunk_max_C >= limit, list_ptr, NUM_CHUNKS_POW2)
    num_candidates = 0
    for first in range(0, num_listed, CHUNKS_AT_ONCE):
        ids, logits, is_in = load_listed(
            list_ptr, first, num_listed, raw_ptr, edited_ptr, is_edited, V, CHUNK, CHUNKS_AT_ONCE, HAS_EDITS
        )
        is_candidate = is_in & (logits >= limit)
        flags = is_candidate.to(tl.int32)
        num_in_chunk_D = tl.sum(flags, 1)
        before_chunk_D = num_candidates + tl.cumsum(num_in_chunk_D, 0) - num_in_chunk_D
        places = before_chunk_D[:, None] + tl.cumsum(flags, 1) - 1
        is_stored = is_candidate & (places < MAX_CANDIDATES)
        tl.store(logits_ptr + places, logits, mask=is_stored)
        tl.store(ids_ptr + places, ids, mask=is_stored)
        num_candidates += tl.sum(num_in_chunk_D, 0)
    tl.debug_barrier()
    return num_candidates


@triton.jit
def _draw_candidate(
    num_candidates, logits_ptr, ids_ptr, top_k, has_k, top_p, lowest, total, maximum, temperature, key,
    MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Return the token drawn from the candidates that the filters keep."""
    scale = LOG2_E / temperature
    places_N = tl.arange(0, MAX_CANDIDATES)
    is_in_N = places_N < num_candidates
    logits_N = tl.load(logits_ptr + places_N, mask=is_in_N, other=LOWEST_LOGIT)
    num_above_N = tl.zeros((MAX_CANDIDATES,), tl.int32)
    weight_above_N = tl.zeros((MAX_CANDIDATES,), tl.float32)
    for first in range(0, num_candidates, NUM_RIVALS):
        rivals_J = first + tl.arange(0, NUM_RIVALS)
        rival_J = tl.load(logits_ptr + rivals_J, mask=rivals_J < num_candidates, other=LOWEST_LOGIT)
        weight_J = tl.exp2((rival_J - maximum) * scale)
        is_above = rival_J[None, :] > logits_N[:, None]
        num_above_N += tl.sum(is_above.to(tl.int32), 1)
        weight_above_N += tl.sum(tl.where(is_above, weight_J[None, :], 0.0), 1)
    is_in_top_k_N = is_in_N & (num_above_N < top_k)
    if has_k:
        kth = tl.min(tl.where(is_in_top_k_N, logits_N, float("inf")), 0)
        is_kth_N = is_in_N & (logits_N == kth)
        num_above_kth = tl.max(tl.where(is_kth_N, num_above_N, 0), 0)
        weight_above_kth = tl.max(tl.where(is_kth_N, weight_above_N, 0.0), 0)
        total = weight_above_kth + (top_k - num_above_kth) * tl.exp2((kth - maximum) * scale)
    weight_limit = tl.where(top_p < 1, top_p * total, float("inf"))
    is_kept_N = is_in_top_k_N & (logits_N >= lowest) & (weight_above_N < weight_limit)
    ids_N = tl.load(ids_ptr + places_N, mask=is_in_N, other=0)
    values_N = tl.div_rn(tl.where(is_in_N, logits_N - maximum, 0.0), temperature) + gumbel_noise(key, ids_N)
    values_N = tl.where(is_kept_N, values_N, MINUS_INFINITY)
    value = tl.max(values_N, 0)
    return tl.min(tl.where(is_kept_N & (values_N == value), ids_N, NO_ID), 0)
