"""What a sampling step has to know of all logits, made by the kernel that computes them.

As kernels.argmax_sample's first kernel, but for pieces of its chunks: a piece's largest logit, its lift or
what no token of it reaches, noise included, and its weights. Functions are inlined into the kernel that calls
them. Knows nothing about how logits are computed.

Shapes: R rows, L lanes, N pieces of a row, O logits of a piece.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.counter_noise import GROUP_IDS, quick_exponential, quick_log2, row_key, uniform_bounds
from kernels.interpreter import IS_INTERPRETED
from kernels.logit_chunks import (
    LOG2_E,
    MINUS_INFINITY,
    SMALLEST_TEMPERATURE,
    clamp_logits,
)
from kernels.sampler_tables import LaneSampling

LEAST_WEIGHT, MOST_WEIGHT = tl.constexpr(1e-30), tl.constexpr(1e20)
LOWEST_EXPONENT = tl.constexpr(-200.0)
"""Two to this power is 0 in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitSummary:
    """Whose logits they are, and where the summary goes."""

    lanes_R: torch.Tensor
    """int32; a row of a negative lane is padding: nothing is written."""
    positions_R: torch.Tensor
    """int32: of each row's last known token."""
    tables: LaneSampling
    is_sampled: bool
    """Whether tokens are drawn; if not, only the largest logits are told."""
    num_chunks: int
    """Of which each row with at most so large a top_k needs no bounds."""
    piece_size: int
    maximum_RN: torch.Tensor
    """float32."""
    bound_RN: torch.Tensor
    """float32: of rows without a limit the piece's lift."""
    sum_RN: torch.Tensor
    """float32: relative to the weight of the piece's largest logit."""


def summary_arguments(summary: LogitSummary | None) -> tuple[Any, ...]:
    """Return what a kernel that writes the summary is given: lanes to sums, and the number of chunks."""
    if summary is None:
        return (*[None] * 10, 0)
    tables = summary.tables
    return (
        *(summary.lanes_R, summary.positions_R),
        *(tables.temperature_L, tables.top_k_L, tables.top_p_L, tables.min_p_L, tables.seed_L),
        *(summary.maximum_RN, summary.bound_RN, summary.sum_RN, summary.num_chunks),
    )


@triton.jit
def load_wishes(
    row, lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, num_rows, V,
    num_chunks, IS_SAMPLED: tl.constexpr,
):  # fmt: skip
    """Return what these rows are and want.

    Is there one, is it drawn, does it want a lift, a bound, a sum; its scale and its noise's key.
    """
    lane = tl.load(lanes_ptr + row, mask=row < num_rows, other=-1)
    is_live = lane >= 0
    is_drawn, wants_lift, wants_bound, wants_sum = is_live & False, is_live, is_live, is_live
    scale, key = row.to(tl.float32), row.to(tl.uint64)
    if IS_SAMPLED:
        temperature = tl.load(temperature_ptr + lane, mask=is_live, other=0.0)
        top_k = tl.load(top_k_ptr + lane, mask=is_live, other=0)
        top_p = tl.load(top_p_ptr + lane, mask=is_live, other=1.0)
        min_p = tl.load(min_p_ptr + lane, mask=is_live, other=0.0)
        is_drawn = temperature > 0
        wants_lift, wants_bound, wants_sum = wishes_of(temperature, top_k, top_p, min_p, V, num_chunks)
        scale = LOG2_E / tl.maximum(temperature, SMALLEST_TEMPERATURE)
        seed = tl.load(seed_ptr + lane, mask=is_live, other=0)
        key = row_key(seed, tl.load(positions_ptr + row, mask=is_live, other=0) + 1)
    return is_live, is_drawn, wants_lift, wants_bound, wants_sum, scale, key


@triton.jit
def wishes_of(temperature, top_k, top_p, min_p, V, num_chunks):
    """Return whether rows of such parameters want lifts, bounds and sums."""
    is_drawn = temperature > 0
    keeps_all = (top_k == 0) | (top_k >= V)
    wants_lift = is_drawn & keeps_all & (top_p >= 1) & (min_p <= 0)
    wants_bound = is_drawn & (keeps_all | (top_k > num_chunks)) & (~wants_lift)
    return wants_lift, wants_bound, is_drawn & keeps_all & (top_p < 1)


@triton.jit
def weigh(distance, scale):
    """Return the weights of logits so far from their largest; NaN and what is very far weighs nothing."""
    exponent = distance * scale
    # A GPU's maximum of a number and NaN is the number.
    if IS_INTERPRETED:
        exponent = tl.where(exponent > LOWEST_EXPONENT, exponent, LOWEST_EXPONENT)
    return tl.exp2(tl.maximum(exponent, LOWEST_EXPONENT))


@triton.jit
def lift(total, key, group):
    """Return, base 2, by how much a group is above its largest logit: its weights and its noise.

    Both are one logarithm, as the noise is minus that of a number of Exp(1).
    """
    # A group without ids, or of nothing but NaN, weighs nothing; an infinite logit no more than a number.
    total = tl.minimum(tl.maximum(total, LEAST_WEIGHT), MOST_WEIGHT)
    return quick_log2(total / quick_exponential(key, group + GROUP_IDS))


@triton.jit
def summarize_piece(
    logits_RO, first_id, wishes, maximum_ptr, bound_ptr, sum_ptr, V, IS_SAMPLED: tl.constexpr
):  # fmt: skip
    """Write what is to be known of neighbouring logits, from first_id on; past the vocabulary are none."""
    ROWS: tl.constexpr = logits_RO.shape[0]
    SIZE: tl.constexpr = logits_RO.shape[1]
    is_live, _, wants_lift, wants_bound, wants_sum, scale, key = wishes
    is_in = (first_id + tl.arange(0, SIZE) < V)[None, :]
    logits_RO = tl.where(is_in, logits_RO, MINUS_INFINITY)
    if IS_INTERPRETED:
        logits_RO = clamp_logits(logits_RO)
    place = tl.arange(0, ROWS) * tl.cdiv(V, SIZE) + first_id // SIZE
    maximum = clamp_logits(tl.max(logits_RO, 1))
    tl.store(maximum_ptr + place, maximum, mask=is_live)
    if IS_SAMPLED:
        if tl.max(wants_bound.to(tl.int32), 0) > 0:
            lowered_RO = uniform_bounds(key, first_id, SIZE) + logits_RO * -scale[:, None]
            tl.store(bound_ptr + place, -tl.min(lowered_RO, 1), mask=wants_bound)
        if tl.max((wants_lift | wants_sum).to(tl.int32), 0) > 0:
            total = tl.sum(tl.where(is_in, weigh(logits_RO - maximum[:, None], scale[:, None]), 0.0), 1)
            tl.store(sum_ptr + place, total, mask=wants_sum)
            tl.store(bound_ptr + place, lift(total, key, first_id // SIZE), mask=wants_lift)
