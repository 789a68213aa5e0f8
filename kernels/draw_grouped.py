"""Draws a row without limits: the best piece by maxima and lifts, then one of its ids.

The way of nearly all rows of a captured step, and so short: what has to be known of all pieces, the row's
largest logit and which piece is the best, takes one reduction, and the token another. Of the row's logits it
reads one group, where pieces are groups, and else the best piece. A row of temperature 0 takes the same way:
the first piece that has the largest logit, and the first id. Knows nothing about top_k, top_p and min_p:
kernels/argmax_sample.py chooses.

Shapes: N pieces of a row, padded to a power of two; a piece has PIECE logits, GROUP of them are a group.
Source: Gumbel-max trick, by groups first: kernels.sample.
"""

import triton
import triton.language as tl

from kernels.counter_noise import LN_2, gumbel_noise
from kernels.logit_chunks import (
    LOG2_E,
    LOWEST_LOGIT,
    MINUS_INFINITY,
    NO_ID,
    SMALLEST_TEMPERATURE,
    clamp_logits,
    load_logits,
)
from kernels.logit_summary import lift, weigh


@triton.jit
def draw_grouped(
    temperature, key, raw_ptr, edited_ptr, is_edited, maximum_ptr, lift_ptr, V, num_pieces,
    NUM_PIECES_POW2: tl.constexpr, PIECE: tl.constexpr, GROUP: tl.constexpr, IS_SAMPLED: tl.constexpr,
    HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return a row's token; of a temperature of 0 the first of the largest logits."""
    is_drawn = temperature > 0
    if IS_SAMPLED:
        temperature = tl.maximum(temperature, SMALLEST_TEMPERATURE)
    maximum, piece = _best_piece(
        temperature, is_drawn, maximum_ptr, lift_ptr, num_pieces, NUM_PIECES_POW2, IS_SAMPLED
    )
    group = piece
    if PIECE > GROUP:
        ids = piece * PIECE + tl.arange(0, PIECE)
        logits = load_logits(raw_ptr, edited_ptr, is_edited, ids, ids < V, HAS_EDITS)
        group = _group_of(logits, is_drawn, maximum, temperature, key, piece * PIECE, V, GROUP, IS_SAMPLED)
    return draw_of_group(
        group, raw_ptr, edited_ptr, is_edited, is_drawn, maximum, temperature, key, V, GROUP, IS_SAMPLED,
        HAS_EDITS,
    )  # fmt: skip


@triton.jit
def draw_of_group(
    group, raw_ptr, edited_ptr, is_edited, is_drawn, maximum, temperature, key, end, GROUP: tl.constexpr,
    IS_SAMPLED: tl.constexpr, HAS_EDITS: tl.constexpr,
):  # fmt: skip
    """Return one of a group's ids below the end: drawn, or the first of the largest logits."""
    ids = group * GROUP + tl.arange(0, GROUP)
    values = load_logits(raw_ptr, edited_ptr, is_edited, ids, ids < end, HAS_EDITS)
    if IS_SAMPLED:
        # While the logits are on their way.
        noise = gumbel_noise(key, ids)
        values = tl.where(is_drawn, tl.div_rn(values - maximum, temperature) + noise, values)
    _, place = tl.max(tl.where(ids < end, values, MINUS_INFINITY), 0, return_indices=True)
    return group * GROUP + place


@triton.jit
def _best_piece(
    temperature, is_drawn, maximum_ptr, lift_ptr, num_pieces, NUM_PIECES_POW2: tl.constexpr,
    IS_SAMPLED: tl.constexpr,
):  # fmt: skip
    """Return the row's largest logit and the number of its best piece."""
    pieces_N = tl.arange(0, NUM_PIECES_POW2)
    is_piece_N = pieces_N < num_pieces
    maximum_N = tl.load(maximum_ptr + pieces_N, mask=is_piece_N, other=LOWEST_LOGIT)
    if IS_SAMPLED:
        lift_N = tl.load(lift_ptr + pieces_N, mask=is_piece_N, other=LOWEST_LOGIT)
        # In units of logits, not of noise: the difference of two maxima needs no factor, and so stays exact.
        lift_N = tl.where(is_drawn, lift_N * (temperature * LN_2), 0.0)
        maximum, _, _, piece = tl.reduce((maximum_N, maximum_N, lift_N, pieces_N), 0, _better_piece)
    else:
        maximum, piece = tl.max(maximum_N, 0, return_indices=True)
    return maximum, piece


@triton.jit
def _better_piece(
    largest, maximum, lift, piece, other_largest, other_maximum, other_lift, other_piece
):  # fmt: skip
    """Return the larger of both largest logits, and the better piece: its maximum, its lift, its number."""
    above = (maximum - other_maximum) + (lift - other_lift)
    is_better = (above > 0) | ((above == 0) & (piece < other_piece))
    return (
        tl.maximum(largest, other_largest),
        tl.where(is_better, maximum, other_maximum),
        tl.where(is_better, lift, other_lift),
        tl.where(is_better, piece, other_piece),
    )


@triton.jit
def _group_of(
    logits, is_drawn, maximum, temperature, key, first_id, V, GROUP: tl.constexpr, IS_SAMPLED: tl.constexpr
):  # fmt: skip
    """Return the number of the best group of a piece; of a temperature of 0 where its largest logit is."""
    _, place = tl.max(logits, 0, return_indices=True)
    group = (first_id + place) // GROUP
    if IS_SAMPLED:  # noqa: SIM102
        if is_drawn:
            _, group = best_group(logits, maximum, LOG2_E / temperature, key, first_id, V, GROUP)
    return group


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
    # Where no id weighs anything, as of nothing but NaN, groups without ids would be as good.
    value_N = tl.where(group_N * GROUP < V, value_N, MINUS_INFINITY)
    value = tl.max(value_N, 0)
    return value, tl.min(tl.where(value_N == value, group_N, NO_ID), 0)
