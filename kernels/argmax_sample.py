"""Draws the argmax of logits, or a token by their softmax, in two kernels.

The first reads all logits once, and leaves the maximum of each chunk of a row. Where no limit drops tokens,
a group of neighbouring ids is drawn by its weight, and then one of its ids, as kernels.sample has it: the
first kernel leaves each chunk's lift, by how much its best group, noise included, is above the chunk's
maximum; the second one, one program a row, takes the best chunk and draws from its best group, in
kernels/draw_grouped.py. A row with a limit has noise for each id: the first kernel leaves a bound, which no
token of the chunk reaches, and the second one evaluates exactly only the chunks whose bound lets them win:
one or two. A bound is cheap, as it needs one logarithm instead of two and no index: E = -log1p(-u) is at
least u, so -log(u) is at least the noise -log(E).

top_p is checked on the token that was drawn: it is kept if the tokens above it have less than top_p of
the weight. If not, the draw is repeated above it; what is drawn is what a draw from the kept tokens
gives. A repetition is as likely as the dropped tokens are. Results depend on a row's own numbers only.
Knows nothing about top_k: kernels/filter_threshold.py tells it a limit, or draws itself where few tokens
are left, in the same launch: one of its own took 1.8 us of every step on an H200.

Shapes: R rows, V vocabulary, C chunks of a row, padded to a power of two.
Source: Gumbel-max trick; rejection of dropped tokens as in FlashInfer's sampling kernels.
"""

import triton
import triton.language as tl

from kernels.counter_noise import gumbel_noise, row_key, uniform_bounds
from kernels.draw_grouped import best_group, draw_grouped
from kernels.filter_threshold import draw_ranked, find_kth, is_ranked, lowest_of_min_p, sum_chunks
from kernels.interpreter import IS_INTERPRETED
from kernels.logit_chunks import (
    LOG2_E,
    LOWEST_LOGIT,
    MINUS_INFINITY,
    NO_ID,
    SMALLEST_TEMPERATURE,
    clamp_logits,
    load_address,
    load_logits,
    load_maxima,
    measure_kept,
    wait_for_inputs,
    write_token,
)  # fmt: skip
from kernels.logit_summary import weigh, wishes_of


@triton.jit
def summarize_chunks_kernel(
    logits_ptr, edited_ptr, is_edited_ptr, lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr,
    top_p_ptr, min_p_ptr, seed_ptr, chunk_max_ptr, chunk_bound_ptr, chunk_sum_ptr, logits_stride, V,
    num_chunks, CHUNK: tl.constexpr, GROUP: tl.constexpr, CHUNKS_PER_PROGRAM: tl.constexpr,
    IS_SAMPLED: tl.constexpr, HAS_EDITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: CHUNKS_PER_PROGRAM neighbouring chunks of a row."""
    row = tl.program_id(1)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        wait_for_inputs(PDL)
        return
    raw_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    edited_row_ptr = edited_ptr + row.to(tl.int64) * V
    first = tl.program_id(0) * CHUNKS_PER_PROGRAM
    wants_lift, wants_bound, wants_sum = False, False, False
    scale = 0.0
    key = tl.zeros((), tl.uint64)
    if IS_SAMPLED:
        temperature = tl.load(temperature_ptr + lane)
        top_k, top_p, min_p = tl.load(top_k_ptr + lane), tl.load(top_p_ptr + lane), tl.load(min_p_ptr + lane)
        wants_lift, wants_bound, wants_sum = wishes_of(temperature, top_k, top_p, min_p, V, num_chunks)
        scale = LOG2_E / tl.maximum(temperature, SMALLEST_TEMPERATURE)
        key = row_key(tl.load(seed_ptr + lane), tl.load(positions_ptr + row) + 1)
    wait_for_inputs(PDL)
    is_edited = tl.load(is_edited_ptr + row) if HAS_EDITS else 0
    for chunk in range(first, tl.minimum(first + CHUNKS_PER_PROGRAM, num_chunks)):
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        logits = _load_chunk(raw_ptr, edited_row_ptr, is_edited, ids, (chunk + 1) * CHUNK <= V, V, HAS_EDITS)
        place = row * num_chunks + chunk
        maximum = clamp_logits(tl.max(logits, 0))
        tl.store(chunk_max_ptr + place, maximum)
        if IS_SAMPLED:
            if wants_lift:
                value, _ = best_group(logits, maximum, scale, key, chunk * CHUNK, V, GROUP)
                tl.store(chunk_bound_ptr + place, value)
            if wants_bound:
                # Minus the bounds: to take a logarithm from a product costs an instruction more.
                lowered = tl.reshape(
                    uniform_bounds(key + tl.zeros((1,), tl.uint64), chunk * CHUNK, CHUNK), (CHUNK,)
                )
                tl.store(chunk_bound_ptr + place, -tl.min(lowered + logits * -scale, 0))
            if wants_sum:
                weights = tl.where(ids < V, weigh(logits - maximum, scale), 0.0)
                tl.store(chunk_sum_ptr + place, tl.sum(weights, 0))


@triton.jit
def _load_chunk(raw_ptr, edited_ptr, is_edited, ids, is_whole, V, HAS_EDITS: tl.constexpr):
    """Return a chunk's logits in float32 without a mask where it is whole, and as they are.

    A mask and clamps would be a quarter of all instructions; a GPU's maximum passes over NaN.
    """
    if HAS_EDITS:
        logits = load_logits(raw_ptr, edited_ptr, is_edited, ids, ids < V, HAS_EDITS)
    elif is_whole:
        logits = tl.load(raw_ptr + ids).to(tl.float32)
    else:
        logits = tl.load(raw_ptr + ids, mask=ids < V, other=MINUS_INFINITY).to(tl.float32)
    if IS_INTERPRETED:
        logits = clamp_logits(logits)
    return logits


@triton.jit
def draw_kernel(
    logits_ptr, edited_ptr, is_edited_ptr, lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr, top_p_ptr,
    min_p_ptr, seed_ptr, maximum_ptr, bound_ptr, sum_ptr, chunk_list_ptr, candidate_logits_ptr,
    candidate_ids_ptr, token_pool_ptr, out_ptr, told_ptr, logits_stride, token_pool_stride, V, num_chunks,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, PIECES: tl.constexpr,
    GROUP: tl.constexpr, MAX_CANDIDATES: tl.constexpr, IS_SAMPLED: tl.constexpr, HAS_EDITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program: a row."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        wait_for_inputs(PDL)
        return
    address = load_address(told_ptr)
    position = tl.load(positions_ptr + row)
    temperature, top_k, top_p, min_p = 0.0, 0, 1.0, 0.0
    key, is_limited = tl.zeros((), tl.uint64), False
    if IS_SAMPLED:
        temperature = tl.load(temperature_ptr + lane)
        top_k, top_p, min_p = tl.load(top_k_ptr + lane), tl.load(top_p_ptr + lane), tl.load(min_p_ptr + lane)
        key = row_key(tl.load(seed_ptr + lane), position + 1)
        wants_lift, _, _ = wishes_of(temperature, top_k, top_p, min_p, V, num_chunks)
        is_limited = (temperature > 0) & (~wants_lift)
    num_pieces = tl.cdiv(V, CHUNK // PIECES)
    maximum_ptr, bound_ptr = maximum_ptr + row * num_pieces, bound_ptr + row * num_pieces
    raw_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    edited_row_ptr = edited_ptr + row.to(tl.int64) * V
    # Each way waits itself, as compilers move the key's hash behind a wait that stands in front of both; the
    # barrier keeps them from making one of two.
    if is_limited:
        tl.debug_barrier()
        wait_for_inputs(PDL)
        is_edited = tl.load(is_edited_ptr + row) if HAS_EDITS else 0
        candidates = row * MAX_CANDIDATES
        token = _draw_limited(
            tl.maximum(temperature, SMALLEST_TEMPERATURE), top_k, top_p, min_p, key, raw_ptr, edited_row_ptr,
            is_edited, maximum_ptr, bound_ptr, sum_ptr + row * num_pieces, chunk_list_ptr + row * num_chunks,
            candidate_logits_ptr + candidates, candidate_ids_ptr + candidates, V, num_chunks, num_pieces,
            CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, PIECES, MAX_CANDIDATES, HAS_EDITS,
        )  # fmt: skip
    else:
        wait_for_inputs(PDL)
        is_edited = tl.load(is_edited_ptr + row) if HAS_EDITS else 0
        token = draw_grouped(
            temperature, key, raw_ptr, edited_row_ptr, is_edited, maximum_ptr, bound_ptr, V, num_pieces,
            NUM_CHUNKS_POW2 * PIECES, CHUNK // PIECES, GROUP, IS_SAMPLED, HAS_EDITS,
        )  # fmt: skip
    write_token(token, row, lane, position, out_ptr, told_ptr, token_pool_ptr, token_pool_stride, address)


@triton.jit
def _draw_limited(
    temperature, top_k, top_p, min_p, key, raw_ptr, edited_ptr, is_edited, maximum_ptr, bound_ptr, sum_ptr,
    list_ptr, candidate_logits_ptr, candidate_ids_ptr, V, num_chunks, num_pieces, CHUNK: tl.constexpr,
    NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, PIECES: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the token of a row with a temperature and limits: ranked where they leave few tokens."""
    chunks_C = tl.arange(0, NUM_CHUNKS_POW2)
    chunk_max_C = load_maxima(maximum_ptr, chunks_C, num_pieces, PIECES)
    maximum = tl.max(chunk_max_C, 0)
    has_k = (top_k > 0) & (top_k < V)
    token = -1
    if (has_k & (top_k <= MAX_CANDIDATES)) | ((not has_k) & (min_p > 0)):
        token = draw_ranked(
            temperature, top_k, top_p, min_p, key, maximum, chunk_max_C, raw_ptr, edited_ptr, is_edited,
            maximum_ptr, sum_ptr, list_ptr, candidate_logits_ptr, candidate_ids_ptr, V, num_chunks,
            num_pieces, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, PIECES, MAX_CANDIDATES, HAS_EDITS,
        )  # fmt: skip
    if token < 0:
        bound_C = load_maxima(bound_ptr, chunks_C, num_pieces, PIECES)
        token = _draw_with_noise(
            temperature, top_k, top_p, min_p, key, maximum, chunk_max_C, bound_C, raw_ptr, edited_ptr,
            is_edited, maximum_ptr, sum_ptr, list_ptr, V, num_chunks, num_pieces, CHUNK, NUM_CHUNKS_POW2,
            CHUNKS_AT_ONCE, PIECES, HAS_EDITS,
        )  # fmt: skip
    return token


@triton.jit
def _draw_with_noise(
    temperature, top_k, top_p, min_p, key, maximum, chunk_max_C, bound_C, raw_ptr, edited_ptr, is_edited,
    chunk_max_ptr, chunk_sum_ptr, list_ptr, V, num_chunks, num_pieces, CHUNK: tl.constexpr,
    NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, PIECES: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the token of a row with limits, of however many tokens that they keep."""
    scale = LOG2_E / temperature
    lowest = lowest_of_min_p(min_p, maximum, temperature)
    total = 1.0
    if (top_k > 0) & (top_k < V):
        kth, total = find_kth(
            top_k, maximum, scale, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited, V, CHUNK,
            NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
        )  # fmt: skip
        lowest = tl.maximum(lowest, kth)
        if is_ranked(top_k, num_chunks):
            # Nobody has bounded the chunks of such a row.
            bound_C = tl.where(chunk_max_C > MINUS_INFINITY, float("inf"), MINUS_INFINITY)
    elif top_p < 1:
        total = sum_chunks(
            chunk_sum_ptr, chunk_max_ptr, maximum, temperature, num_pieces, NUM_CHUNKS_POW2 * PIECES
        )
    return _draw_kept(
        top_p, total, lowest, maximum, temperature, key, chunk_max_C, bound_C, list_ptr, raw_ptr, edited_ptr,
        is_edited, V, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
    )  # fmt: skip


@triton.jit
def _draw_kept(
    top_p, total, lowest, maximum, temperature, key, chunk_max_C, bound_C, list_ptr, raw_ptr, edited_ptr,
    is_edited, V, CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the first token drawn that top_p keeps, each draw above the one before."""
    token = 0
    floor = MINUS_INFINITY
    is_kept = False
    while not is_kept:
        bound_above_C = tl.where((chunk_max_C > floor) & (chunk_max_C >= lowest), bound_C, MINUS_INFINITY)
        token, logit = _draw_between(
            floor, lowest, maximum, temperature, key, bound_above_C, raw_ptr, edited_ptr, is_edited, V,
            CHUNK, NUM_CHUNKS_POW2, HAS_EDITS,
        )  # fmt: skip
        is_kept = (top_p >= 1) | (logit >= maximum)
        if not is_kept:
            _, weight = measure_kept(
                logit, maximum, LOG2_E / temperature, chunk_max_C, list_ptr, raw_ptr, edited_ptr, is_edited,
                V, True, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, HAS_EDITS,
            )  # fmt: skip
            is_kept = weight < top_p * total
        floor = logit
    return token


@triton.jit
def _draw_between(
    floor, lowest, maximum, temperature, key, bound_C, raw_ptr, edited_ptr, is_edited, V,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the token drawn among logits above the floor and not below the lowest, and its logit.

    The chunk with the highest bound comes first, until no bound reaches the best token so far.
    """
    chunks_C = tl.arange(0, NUM_CHUNKS_POW2)
    shift = maximum * (LOG2_E / temperature)
    # Bounds are base 2 and round differently: 2^-21 of their size, 40 being the most that noise adds.
    slack = (tl.abs(shift) + 40.0) * 2.0**-21 + 1e-3
    best = MINUS_INFINITY
    token = 0
    token_logit = maximum
    highest = tl.max(bound_C, 0)
    needed = MINUS_INFINITY
    while (highest > MINUS_INFINITY) & (highest >= needed):
        chunk = tl.min(tl.where(bound_C == highest, chunks_C, NO_ID), 0)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        logits = load_logits(raw_ptr, edited_ptr, is_edited, ids, ids < V, HAS_EDITS)
        is_allowed = (ids < V) & (logits > floor) & (logits >= lowest)
        values = tl.div_rn(logits - maximum, temperature) + gumbel_noise(key, ids)
        values = tl.where(is_allowed, values, MINUS_INFINITY)
        value = tl.max(values, 0)
        winner = tl.min(tl.where(is_allowed & (values == value), ids, NO_ID), 0)
        is_better = (winner != NO_ID) & ((value > best) | ((value == best) & (winner < token)))
        if is_better:
            best = value
            token = winner
            token_logit = tl.max(tl.where(ids == winner, logits, LOWEST_LOGIT), 0)
        needed = best * LOG2_E + shift - slack
        bound_C = tl.where(chunks_C == chunk, MINUS_INFINITY, bound_C)
        highest = tl.max(bound_C, 0)
    return token, token_logit
