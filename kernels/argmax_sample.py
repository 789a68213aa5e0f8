"""Draws the argmax of logits, or a token by their softmax, in two kernels.

The first reads all logits once, and leaves the maximum of each chunk of a row. Where no limit drops tokens,
a group of neighbouring ids is drawn by its weight, and then one of its ids, as kernels.sample has it: the
first kernel leaves each chunk's lift, by how much its best group, noise included, is above the chunk's
maximum; the second one, one program a row, takes the best chunk and draws from its best group. A row with a
limit has noise for each id: the first kernel leaves a bound, which no token of the chunk reaches, and the
second one evaluates exactly only the chunks whose bound lets them win: one or two. A bound is cheap, as it
needs one logarithm instead of two and no index: E = -log1p(-u) is at least u, so -log(u) is at least the
noise -log(E).

top_p is checked on the token that was drawn: it is kept if the tokens above it have less than top_p of
the weight. If not, the draw is repeated above it; what is drawn is what a draw from the kept tokens
gives. A repetition is as likely as the dropped tokens are. Results depend on a row's own numbers only.
Knows nothing about top_k: kernels/filter_threshold.py tells it a limit, or has drawn before it.

Shapes: R rows, V vocabulary, C chunks of a row, padded to a power of two.
Source: Gumbel-max trick; rejection of dropped tokens as in FlashInfer's sampling kernels.
"""

import triton
import triton.language as tl

from kernels.counter_noise import gumbel_noise, row_key, uniform_bounds
from kernels.filter_threshold import find_kth, is_ranked, lowest_of_min_p, sum_chunks
from kernels.logit_chunks import (
    IS_INTERPRETED,
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
from kernels.logit_summary import lift, weigh, wishes_of


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
def best_group(logits, maximum, scale, key, first_id, V, GROUP: tl.constexpr):
    """Return by how much a chunk's best group is above the maximum, base 2, and the group's number."""
    NUM: tl.constexpr = logits.shape[0] // GROUP
    logits_NO = tl.reshape(logits, (NUM, GROUP))
    ids_NO = first_id + tl.reshape(tl.arange(0, NUM * GROUP), (NUM, GROUP))
    group_N = first_id // GROUP + tl.arange(0, NUM)
    group_max_N = clamp_logits(tl.max(logits_NO, 1))
    weights_NO = tl.where(ids_NO < V, weigh(logits_NO - group_max_N[:, None], scale), 0.0)
    value_N = (group_max_N - maximum) * scale + lift(tl.sum(weights_NO, 1), key, group_N)
    value = tl.max(value_N, 0)
    return value, tl.min(tl.where(value_N == value, group_N, NO_ID), 0)


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
    logits_ptr, edited_ptr, is_edited_ptr, is_drawn_ptr, lanes_ptr, positions_ptr, temperature_ptr,
    top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, chunk_max_ptr, chunk_bound_ptr, chunk_sum_ptr,
    chunk_list_ptr, token_pool_ptr, out_ptr, told_ptr, logits_stride, token_pool_stride, V, num_chunks,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, PIECES: tl.constexpr,
    GROUP: tl.constexpr, IS_SAMPLED: tl.constexpr, HAS_EDITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: a row that nobody has drawn yet."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        wait_for_inputs(PDL)
        return
    # Behind the token it would be one wait more in series.
    address = load_address(told_ptr)
    position = tl.load(positions_ptr + row)
    temperature, top_k, top_p, min_p = 0.0, 0, 1.0, 0.0
    key = tl.zeros((), tl.uint64)
    if IS_SAMPLED:
        temperature = tl.load(temperature_ptr + lane)
        top_k, top_p, min_p = tl.load(top_k_ptr + lane), tl.load(top_p_ptr + lane), tl.load(min_p_ptr + lane)
        key = row_key(tl.load(seed_ptr + lane), position + 1)
    wait_for_inputs(PDL)
    # All on their way before any is looked at.
    is_drawn = tl.load(is_drawn_ptr + row) if IS_SAMPLED else 0
    num_pieces, chunks_C = tl.cdiv(V, CHUNK // PIECES), tl.arange(0, NUM_CHUNKS_POW2)
    chunk_max_ptr, chunk_sum_ptr = chunk_max_ptr + row * num_pieces, chunk_sum_ptr + row * num_pieces
    chunk_max_C = load_maxima(chunk_max_ptr, chunks_C, num_pieces, PIECES)
    bound_C = chunk_max_C
    if IS_SAMPLED:
        bound_C = load_maxima(chunk_bound_ptr + row * num_pieces, chunks_C, num_pieces, PIECES)
    if is_drawn != 0:
        return
    raw_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    edited_row_ptr = edited_ptr + row.to(tl.int64) * V
    is_edited = tl.load(is_edited_ptr + row) if HAS_EDITS else 0
    maximum = tl.max(chunk_max_C, 0)
    wants_lift, _, _ = wishes_of(temperature, top_k, top_p, min_p, V, num_chunks)
    if wants_lift:
        token = _draw_grouped(
            temperature, key, maximum, chunk_max_ptr, chunk_bound_ptr + row * num_pieces, raw_ptr,
            edited_row_ptr, is_edited, V, num_pieces, CHUNK, NUM_CHUNKS_POW2, PIECES, GROUP, HAS_EDITS,
        )  # fmt: skip
    elif temperature > 0:
        token = _draw_with_noise(
            temperature, top_k, top_p, min_p, key, maximum, chunk_max_C, bound_C, raw_ptr,
            edited_row_ptr, is_edited, chunk_max_ptr, chunk_sum_ptr, chunk_list_ptr + row * num_chunks, V,
            num_chunks, num_pieces, CHUNK, NUM_CHUNKS_POW2, CHUNKS_AT_ONCE, PIECES, HAS_EDITS,
        )  # fmt: skip
    else:
        # The first piece that has it: of others the logits may never have been written.
        pieces = tl.arange(0, NUM_CHUNKS_POW2 * PIECES)
        maxima = tl.load(chunk_max_ptr + pieces, mask=pieces < num_pieces, other=MINUS_INFINITY)
        first = tl.min(tl.where(maxima == maximum, pieces, NO_ID), 0)
        ids = first * (CHUNK // PIECES) + tl.arange(0, CHUNK // PIECES)
        logits = load_logits(raw_ptr, edited_row_ptr, is_edited, ids, ids < V, HAS_EDITS)
        token = tl.min(tl.where(logits == maximum, ids, NO_ID), 0)
    write_token(token, row, lane, position, out_ptr, told_ptr, token_pool_ptr, token_pool_stride, address)


@triton.jit
def _draw_grouped(
    temperature, key, maximum, maximum_ptr, lift_ptr, raw_ptr, edited_ptr, is_edited, V, num_pieces,
    CHUNK: tl.constexpr, NUM_CHUNKS_POW2: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the token of a row that has a temperature and no limit."""
    temperature = tl.maximum(temperature, SMALLEST_TEMPERATURE)
    scale = LOG2_E / temperature
    pieces = tl.arange(0, NUM_CHUNKS_POW2 * PIECES)
    is_piece = pieces < num_pieces
    above = tl.load(maximum_ptr + pieces, mask=is_piece, other=LOWEST_LOGIT) - maximum
    values = above * scale + tl.load(lift_ptr + pieces, mask=is_piece, other=MINUS_INFINITY)
    piece = tl.min(tl.where(values == tl.max(values, 0), pieces, NO_ID), 0)
    group = piece
    if PIECES == 1:
        ids = piece * CHUNK + tl.arange(0, CHUNK)
        logits = load_logits(raw_ptr, edited_ptr, is_edited, ids, ids < V, HAS_EDITS)
        _, group = best_group(logits, maximum, scale, key, piece * CHUNK, V, GROUP)
    ids = group * GROUP + tl.arange(0, GROUP)
    logits = load_logits(raw_ptr, edited_ptr, is_edited, ids, ids < V, HAS_EDITS)
    values = tl.div_rn(logits - maximum, temperature) + gumbel_noise(key, ids)
    values = tl.where(ids < V, values, MINUS_INFINITY)
    return tl.min(tl.where(values == tl.max(values, 0), ids, NO_ID), 0)


@triton.jit
def _draw_with_noise(
    temperature, top_k, top_p, min_p, key, maximum, chunk_max_C, bound_C, raw_ptr, edited_ptr, is_edited,
    chunk_max_ptr, chunk_sum_ptr, list_ptr, V, num_chunks, num_pieces, CHUNK: tl.constexpr,
    NUM_CHUNKS_POW2: tl.constexpr, CHUNKS_AT_ONCE: tl.constexpr, PIECES: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return the token of a row with a temperature."""
    temperature = tl.maximum(temperature, SMALLEST_TEMPERATURE)
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
