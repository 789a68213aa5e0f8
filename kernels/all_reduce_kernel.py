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

NUM_TURNS = 3
TURNS = tl.constexpr(NUM_TURNS)


@triton.jit(do_not_specialize=["num_lines"])
def all_reduce_kernel(
    x_ptr,
    mailboxes_ptr,
    turns_ptr,
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
    mailboxes = tl.tuple([])
    for rank in tl.static_range(SIZE):
        mailboxes = mailboxes + tl.tuple([tl.load(mailboxes_ptr + rank)])
    if PDL:  # only where the mailboxes are is constant
        gdc_launch_dependents()
        gdc_wait()
    turn = tl.load(turns_ptr + program, volatile=True)
    own = never_empty(load_line(x_at, is_line, HAS_PTX))
    # From the first rank's box for this program, in this turn.
    line += ((turn % TURNS) * NUM_PROGRAMS + program) * SIZE * BOX_LINES
    if IS_PUSHED:
        for step in tl.static_range(1, SIZE):
            # Each begins with the rank behind it, so that they do not all write to one.
            mailbox = mailboxes[(RANK + step) % SIZE]
            store_line(mailbox + (line + RANK * BOX_LINES) * LINE_BYTES, is_line, own, HAS_PTX)
    if IS_SUMMED:
        sums = tl.tuple([])
        for rank in tl.static_range(SIZE):
            words = own
            if rank != RANK:
                came_at = mailboxes[RANK] + (line + rank * BOX_LINES) * LINE_BYTES
                words = await_line(came_at, is_line, HAS_PTX)
                store_line(came_at, is_line, empty_line(LINES), HAS_PTX)
            numbers = line_numbers(words, IS_HALVES)
            sums = numbers if rank == 0 else add_numbers(sums, numbers, IS_HALVES)
        store_line(x_at, is_line, line_words(sums, IS_HALVES), HAS_PTX)
        # Behind the last warp's reading of it.
        tl.debug_barrier()
        tl.store(turns_ptr + program, turn + 1)
