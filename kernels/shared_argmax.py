"""Takes the likeliest token of logits that lie on several ranks, on the device, for captured steps.

Each rank leaves the best token of its own logits, a value and an id, in two kernels; ranks exchange those;
a third kernel takes the best of all. Does what kernels.shared_sample.argmax_shared does; NaN counts as the
lowest logit, as in kernels/device_sampler.py. Knows nothing about how ranks reach each other.

Shapes: B rows, V token ids of a rank, C pieces of a row, G ranks, L lanes, P positions; 2: value and id.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.logit_chunks import MINUS_INFINITY, NO_ID, clamp_logits, write_token

PIECE = 4096
"""Logits of one program."""


@triton.jit
def _best_of(values, ids):
    """Return the largest value and the lowest id that has it."""
    value = tl.max(values, 0)
    return value, tl.min(tl.where(values == value, ids, NO_ID), 0)


@triton.jit(do_not_specialize=["first_id"])
def best_of_pieces_kernel(logits_ptr, best_ptr, logits_stride, best_stride, V, first_id, PIECE: tl.constexpr):
    """One program: a piece of a row."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    at = logits_ptr + row.to(tl.int64) * logits_stride + columns
    logits = clamp_logits(tl.load(at, mask=columns < V, other=MINUS_INFINITY).to(tl.float32))
    value, column = _best_of(tl.where(columns < V, logits, MINUS_INFINITY), columns)
    out_ptr = best_ptr + row * best_stride + 2 * tl.program_id(1)
    tl.store(out_ptr, value)
    # Exact in float32, as ids are below 2^24.
    tl.store(out_ptr + 1, (column + first_id).to(tl.float32))


@triton.jit
def _load_best(best_ptr, stride, num_candidates, CANDIDATES_POW2: tl.constexpr):
    """Return the best of a row's candidates: its value, and its id as float32."""
    candidates = tl.arange(0, CANDIDATES_POW2)
    is_candidate = candidates < num_candidates
    values = tl.load(best_ptr + candidates * stride, mask=is_candidate, other=MINUS_INFINITY)
    ids = tl.load(best_ptr + candidates * stride + 1, mask=is_candidate, other=0.0)
    return _best_of(values, tl.where(is_candidate, ids.to(tl.int32), NO_ID))


@triton.jit
def best_of_row_kernel(best_ptr, out_ptr, best_stride, num_pieces, PIECES_POW2: tl.constexpr):
    """One program: a row's pieces."""
    row = tl.program_id(0)
    value, token = _load_best(best_ptr + row * best_stride, 2, num_pieces, PIECES_POW2)
    tl.store(out_ptr + 2 * row, value)
    tl.store(out_ptr + 2 * row + 1, token.to(tl.float32))


@triton.jit
def take_best_kernel(
    best_ptr, lanes_ptr, positions_ptr, token_pool_ptr, out_ptr, best_stride, token_pool_stride, num_ranks,
    RANKS_POW2: tl.constexpr,
):  # fmt: skip
    """One program: a row's candidates of all ranks."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    _, token = _load_best(best_ptr + 2 * row, best_stride, num_ranks, RANKS_POW2)
    position = tl.load(positions_ptr + row)
    write_token(token, row, lane, position, out_ptr, token_pool_ptr, token_pool_stride)


def best_of_share(logits_BV: torch.Tensor, *, first_id: int) -> torch.Tensor:
    """Return best_B2 in float32: the largest of a rank's logits, and the lowest token id that has it.

    Args:
        logits_BV: bfloat16, float16 or float32, without padding; rows may be strided.
        first_id: the token id of the first column.
    """
    num_rows, vocab_size = logits_BV.shape
    num_pieces = triton.cdiv(vocab_size, PIECE)
    best_BC2 = logits_BV.new_empty((num_rows, num_pieces, 2), dtype=torch.float32)
    best_of_pieces_kernel[(num_rows, num_pieces)](
        logits_BV,
        best_BC2,
        logits_BV.stride(0),
        best_BC2.stride(0),
        vocab_size,
        first_id,
        PIECE=PIECE,
        num_warps=4,
    )
    if num_pieces == 1:
        return best_BC2[:, 0]
    best_B2 = best_BC2.new_empty((num_rows, 2))
    pieces_pow2 = triton.next_power_of_2(num_pieces)
    best_of_row_kernel[(num_rows,)](
        best_BC2, best_B2, best_BC2.stride(0), num_pieces, PIECES_POW2=pieces_pow2, num_warps=1
    )
    return best_B2


def sample_greedy_shared(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    token_pool_LP: torch.Tensor,
    out_token_ids_B: torch.Tensor,
    *,
    first_id: int,
    all_gather: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Take each row's likeliest token, the same on all ranks; write it to the output and the lane's tokens.

    Args:
        logits_BV: this rank's, without padding, bfloat16, float16 or float32; rows may be strided.
        lanes_B: int32; a row of a negative lane is padding: nothing of it is written.
        positions_B: int32, of the row's last known token.
        token_pool_LP: int32, each lane's tokens.
        out_token_ids_B: int32, written.
        first_id: the token id of the first column.
        all_gather: returns a contiguous tensor of every rank, in a new first dimension.
    """
    best_GB2 = all_gather(best_of_share(logits_BV, first_id=first_id).contiguous())
    num_ranks, num_rows = best_GB2.shape[:2]
    take_best_kernel[(num_rows,)](
        best_GB2,
        lanes_B,
        positions_B,
        token_pool_LP,
        out_token_ids_B,
        best_GB2.stride(0),
        token_pool_LP.stride(0),
        num_ranks,
        RANKS_POW2=triton.next_power_of_2(num_ranks),
        num_warps=1,
    )
