"""The Triton kernel of all_reduce: leaves a rank's lines in every peer's mailbox, adds up what came.

Knows nothing about why a box of the mailbox is empty when a rank writes to it: all_reduce.py tells.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.line_words import (
    LINE_BYTES,
    add_numbers,
    await_line,
    empty_line,
    line_numbers,
    line_words,
    load_line,
    never_empty,
    store_line,
)
from kernels.row_squares import CHUNK

NUM_TURNS = 3
TURNS = tl.constexpr(NUM_TURNS)


@triton.jit(do_not_specialize=["num_lines"])
def all_reduce_kernel(
    x_ptr,
    mailboxes_ptr,
    turns_ptr,
    residual_ptr,
    squares_ptr,
    num_lines,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    NUM_PROGRAMS: tl.constexpr,
    BOX_LINES: tl.constexpr,
    LINES: tl.constexpr,
    IS_PUSHED: tl.constexpr, IS_SUMMED: tl.constexpr, HAS_PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: LINES lines. NUM_PROGRAMS is the mailbox's, not this launch's."""
    program, line = tl.program_id(0), tl.arange(0, LINES)
    IS_HALVES: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16
    is_line = program * LINES + line < num_lines
    x_at = x_ptr.to(tl.int64) + (program * LINES + line) * LINE_BYTES
    sum_at = x_at
    if residual_ptr is not None:
        sum_at = residual_ptr.to(tl.int64) + (program * LINES + line) * LINE_BYTES
    mailboxes = tl.tuple([])
    for rank in tl.static_range(SIZE):
        mailboxes = mailboxes + tl.tuple([tl.load(mailboxes_ptr + rank)])
    if PDL:  # only where the mailboxes are is constant
        gdc_launch_dependents()
        gdc_wait()
    turn = tl.load(turns_ptr + program, volatile=True)
    own = never_empty(load_line(x_at, is_line, HAS_PTX))
    # From the first rank's box for this program, in this turn.
    line += (turn * NUM_PROGRAMS + program) * SIZE * BOX_LINES
    if IS_PUSHED:
        for step in tl.static_range(1, SIZE):
            # Each begins with the rank behind it, so that they do not all write to one.
            mailbox = mailboxes[(RANK + step) % SIZE]
            store_line(mailbox + (line + RANK * BOX_LINES) * LINE_BYTES, is_line, own, HAS_PTX)
    if IS_SUMMED:
        residual = None if residual_ptr is None else load_line(sum_at, is_line, HAS_PTX)
        sums = _take_sums(
            own, residual, mailboxes[RANK], line, is_line, RANK, SIZE, BOX_LINES, IS_HALVES, HAS_PTX
        )
        words = line_words(sums, IS_HALVES)
        store_line(sum_at, is_line, words, HAS_PTX)
        if squares_ptr is not None:
            _store_squares(squares_ptr, line_numbers(words, IS_HALVES), program, num_lines, LINES, IS_HALVES)
        tl.store(turns_ptr + program, (turn + 1) % TURNS)


@triton.jit
def _take_sums(
    own, residual, mailbox, line, is_line,
    RANK: tl.constexpr, SIZE: tl.constexpr, BOX_LINES: tl.constexpr,
    IS_HALVES: tl.constexpr, HAS_PTX: tl.constexpr,
):  # fmt: skip
    """Return the residual plus all ranks' numbers, in their order; empty the boxes they came in."""
    came, sums = tl.tuple([]), tl.tuple([])
    for rank in tl.static_range(SIZE):
        words = own
        if rank != RANK:  # all are on their way before any is awaited
            words = load_line(mailbox + (line + rank * BOX_LINES) * LINE_BYTES, is_line, HAS_PTX)
        came = came + tl.tuple([words])
    for rank in tl.static_range(SIZE):
        words = came[rank]
        if rank != RANK:
            words = await_line(mailbox + (line + rank * BOX_LINES) * LINE_BYTES, words, HAS_PTX)
        numbers = line_numbers(words, IS_HALVES)
        if rank == 0 and residual is None:
            sums = numbers
        else:
            before = line_numbers(residual, IS_HALVES) if rank == 0 else sums
            sums = add_numbers(before, numbers, IS_HALVES)
    # All threads have seen what is emptied now; and the turn, before that is counted up.
    tl.debug_barrier()
    for rank in tl.static_range(SIZE):
        if rank != RANK:
            at = mailbox + (line + rank * BOX_LINES) * LINE_BYTES
            store_line(at, is_line, empty_line(own[0].shape[0]), HAS_PTX)
    return sums


@triton.jit
def _store_squares(squares_ptr, numbers, program, num_lines, LINES: tl.constexpr, IS_HALVES: tl.constexpr):
    """Write the sums of squares of each SQUARES_CHUNK numbers: whole lines, as rows have whole chunks."""
    CHUNK_LINES: tl.constexpr = CHUNK // 8 if IS_HALVES else CHUNK // 4
    squares = tl.zeros((LINES,), tl.float32)
    for i in tl.static_range(8 if IS_HALVES else 4):
        squares += numbers[i] * numbers[i]
    sums = tl.sum(tl.reshape(squares, (LINES // CHUNK_LINES, CHUNK_LINES)), 1)
    chunk = program * (LINES // CHUNK_LINES) + tl.arange(0, LINES // CHUNK_LINES)
    tl.store(squares_ptr + chunk, sums, mask=chunk * CHUNK_LINES < num_lines)
