"""Draws a token a row from logits that lie on several ranks, on the device, for captured steps.

Each rank leaves its own best token in two kernels, ranks exchange those, and a third kernel takes the best of
all. Does what kernels.shared_sample does for rows without a limit: a token stands for its group of ids, which
lies on one rank. What is compared is the group's weight plus noise, relative to a base, the largest logit of
where it was best, so that small temperatures make no infinities. NaN counts as the lowest logit. Knows
nothing about how ranks reach each other.

Shapes: B rows, V token ids of a rank, C pieces of a row, G ranks, L lanes, P positions, 4: a candidate's
value, id and base, and one number that fills it up to 16 bytes.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.counter_noise import row_key
from kernels.draw_grouped import best_group, draw_of_group
from kernels.id_groups import GROUP_SIZE
from kernels.logit_chunks import (
    LOG2_E,
    MINUS_INFINITY,
    NO_ID,
    SMALLEST_TEMPERATURE,
    clamp_logits,
    load_address,
    write_token,
)
from kernels.sampler_tables import LaneSampling

PIECE = 4096
"""Logits of one program: whole groups."""


@triton.jit
def _best_of(values, ids):
    """Return the largest value and the lowest id that has it."""
    value = tl.max(values, 0)
    return value, tl.min(tl.where(values == value, ids, NO_ID), 0)


@triton.jit
def _load_temperature(temperature_ptr, lane, IS_DRAWN: tl.constexpr):
    """Return the row's temperature; 0: the likeliest token is taken."""
    temperature = 0.0
    if IS_DRAWN:
        temperature = tl.load(temperature_ptr + lane)
    return temperature


@triton.jit
def _store_candidate(candidate_ptr, value, token, base):
    tl.store(candidate_ptr, value)
    # Exact in float32, as ids are below 2^24.
    tl.store(candidate_ptr + 1, token.to(tl.float32))
    tl.store(candidate_ptr + 2, base)
    tl.store(candidate_ptr + 3, 0.0)


@triton.jit
def _load_best(candidates_ptr, stride, num_candidates, temperature, CANDIDATES_POW2: tl.constexpr):
    """Return the best of a row's candidates: its value relative to the largest base, its id, that base."""
    candidates = tl.arange(0, CANDIDATES_POW2)
    is_candidate = candidates < num_candidates
    at = candidates_ptr + candidates * stride
    values = tl.load(at, mask=is_candidate, other=MINUS_INFINITY)
    ids = tl.load(at + 1, mask=is_candidate, other=0.0).to(tl.int32)
    bases = tl.load(at + 2, mask=is_candidate, other=MINUS_INFINITY)
    base = tl.max(bases, 0)
    # A greedy row's values are 0: the largest base wins.
    scale = tl.where(temperature > 0, tl.maximum(temperature, SMALLEST_TEMPERATURE), 1.0)
    values += tl.where(is_candidate, tl.div_rn(bases - base, scale), 0.0)
    value, token = _best_of(values, tl.where(is_candidate, ids, NO_ID))
    return value, token, base


@triton.jit(do_not_specialize=["first_id"])
def draw_pieces_kernel(
    logits_ptr, lanes_ptr, positions_ptr, temperature_ptr, seed_ptr, candidates_ptr, logits_stride,
    candidates_stride, V, first_id, PIECE: tl.constexpr, GROUP: tl.constexpr, IS_DRAWN: tl.constexpr,
):  # fmt: skip
    """One program: a piece of a row."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    columns = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    ids, is_own = columns + first_id, columns < V
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    logits = tl.load(row_ptr + columns, mask=is_own, other=MINUS_INFINITY).to(tl.float32)
    base = tl.max(clamp_logits(logits), 0)
    temperature = _load_temperature(temperature_ptr, lane, IS_DRAWN)
    if temperature > 0:
        key = row_key(tl.load(seed_ptr + lane), tl.load(positions_ptr + row) + 1)
        temperature = tl.maximum(temperature, SMALLEST_TEMPERATURE)
        first, end = tl.program_id(1) * PIECE + first_id, V + first_id
        value, group = best_group(logits, base, LOG2_E / temperature, key, first, end, GROUP)
        value = value / LOG2_E
        token = draw_of_group(
            group, row_ptr - first_id, row_ptr, 0, True, base, temperature, key, end, GROUP, True, False
        )
    else:
        value = 0.0
        token = tl.min(tl.where(is_own & (clamp_logits(logits) == base), ids, NO_ID), 0)
    _store_candidate(candidates_ptr + row * candidates_stride + 4 * tl.program_id(1), value, token, base)


@triton.jit
def join_pieces_kernel(
    candidates_ptr, lanes_ptr, temperature_ptr, out_ptr, candidates_stride, num_pieces,
    PIECES_POW2: tl.constexpr, IS_DRAWN: tl.constexpr,
):  # fmt: skip
    """One program: a row's pieces."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    temperature = _load_temperature(temperature_ptr, lane, IS_DRAWN)
    value, token, base = _load_best(
        candidates_ptr + row * candidates_stride, 4, num_pieces, temperature, PIECES_POW2
    )
    _store_candidate(out_ptr + 4 * row, value, token, base)


@triton.jit
def take_best_kernel(
    candidates_ptr, lanes_ptr, positions_ptr, temperature_ptr, token_pool_ptr, out_ptr, told_ptr,
    candidates_stride, token_pool_stride, num_ranks, RANKS_POW2: tl.constexpr, IS_DRAWN: tl.constexpr,
):  # fmt: skip
    """One program: a row's candidates of all ranks."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    address = load_address(told_ptr)
    temperature = _load_temperature(temperature_ptr, lane, IS_DRAWN)
    _, token, _ = _load_best(candidates_ptr + 4 * row, candidates_stride, num_ranks, temperature, RANKS_POW2)
    position = tl.load(positions_ptr + row)
    write_token(token, row, lane, position, out_ptr, told_ptr, token_pool_ptr, token_pool_stride, address)


def sample_decode_shared(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    tables: LaneSampling,
    token_pool_LP: torch.Tensor,
    out_token_ids_B: torch.Tensor,
    *,
    first_id: int,
    all_gather: Callable[[torch.Tensor], torch.Tensor],
    is_drawn: bool,
    told_2: torch.Tensor | None = None,
) -> None:
    """Draw a token a row, the same on all ranks; write it to the output and to the lane's tokens.

    Args:
        logits_BV: this rank's, without padding, bfloat16, float16 or float32; rows may be strided.
        lanes_B: int32; a row of a negative lane is padding: nothing of it is written.
        positions_B: int32, of the row's last known token.
        tables: by lane; only temperatures and seeds are read.
        token_pool_LP: int32, each lane's tokens.
        out_token_ids_B: int32, written.
        first_id: the token id of the first column, with which a group begins.
        all_gather: returns a contiguous tensor of every rank, in a new first dimension.
        is_drawn: False takes the likeliest tokens, whatever temperatures say.
        told_2: int64: where tokens and the step's times are told, as kernels.step_times has it.
    """
    own_B4 = _own_candidates(logits_BV, lanes_B, positions_B, tables, first_id=first_id, is_drawn=is_drawn)
    candidates_GB4 = all_gather(own_B4)
    num_ranks, num_rows = candidates_GB4.shape[:2]
    take_best_kernel[(num_rows,)](
        candidates_GB4,
        lanes_B,
        positions_B,
        tables.temperature_L,
        token_pool_LP,
        out_token_ids_B,
        told_2,
        candidates_GB4.stride(0),
        token_pool_LP.stride(0),
        num_ranks,
        RANKS_POW2=triton.next_power_of_2(num_ranks),
        IS_DRAWN=is_drawn,
        num_warps=1,
    )


def _own_candidates(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    tables: LaneSampling,
    *,
    first_id: int,
    is_drawn: bool,
) -> torch.Tensor:
    """Return the best of a rank's logits, (B, 4)."""
    num_rows, vocab_size = logits_BV.shape
    assert not is_drawn or first_id % GROUP_SIZE == 0, "a group of ids lies on one rank"
    num_pieces = triton.cdiv(vocab_size, PIECE)
    # What stands in padding rows is exchanged, and never looked at.
    pieces_BC4 = logits_BV.new_empty((num_rows, num_pieces, 4), dtype=torch.float32)
    draw_pieces_kernel[(num_rows, num_pieces)](
        logits_BV,
        lanes_B,
        positions_B,
        tables.temperature_L,
        tables.seed_L,
        pieces_BC4,
        logits_BV.stride(0),
        pieces_BC4.stride(0),
        vocab_size,
        first_id,
        PIECE=PIECE,
        GROUP=GROUP_SIZE,
        IS_DRAWN=is_drawn,
        num_warps=8,
    )
    own_B4 = pieces_BC4.new_empty((num_rows, 4))
    join_pieces_kernel[(num_rows,)](
        pieces_BC4,
        lanes_B,
        tables.temperature_L,
        own_B4,
        pieces_BC4.stride(0),
        num_pieces,
        PIECES_POW2=triton.next_power_of_2(num_pieces),
        IS_DRAWN=is_drawn,
        num_warps=1,
    )
    return own_B4
