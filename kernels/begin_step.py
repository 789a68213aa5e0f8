"""Begins a captured decode step: takes its words out of a ring of slots, and makes all of them that it needs.

The slot is the one whose turn it is, which the device itself counts: so words can be on their way while the
step before still runs, and the captured launch stays the same. Blocks that tables get before the step are
written by it, too: a row looks for its own block among them, as its table's cell may be written later.
Knows nothing about models: tables are rows of numbers by lane.

Shapes: B rows, L lanes, P positions, M blocks a table, C cells of the block table and spare ones, N slots, W
words: those of worker_svc.batch.padding, S of them in each of six parts, B up to a multiple of four.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.prepare import prepare_tokens_ref, store_prepared
from kernels.step_times import keep_begin, read_clock

BLOCK_B = 16
"""Each row looks at all appended blocks."""
BLOCK_A = 128
NUM_WARPS = 4
NUM_PARTS = 6
NUM_LAST_WORDS = 4
"""After the parts: an address, in two words, and two that fill up to 16 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlots:
    """Where steps' words arrive."""

    slots_NW: torch.Tensor
    """int32, contiguous; rows start at 16 bytes."""
    turns_2: torch.Tensor
    """int32: whose turn it is, and 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """What a step's kernels read; written."""

    words_W: torch.Tensor
    """int32: the slot's, of which lanes, positions and order are taken."""
    input_ids_B: torch.Tensor
    """int32: each row's token."""
    slot_mapping_B: torch.Tensor
    """int64: each row's KV slot; -1 is padding."""
    seq_lens_B: torch.Tensor
    """int32: context lengths after the step; 0 is padding."""
    told_2: torch.Tensor
    """int64: the slot's address and the step's begin, as kernels.step_times has it."""


@triton.jit
def _append(step_ptr, cells_ptr, row, own_cell, num_rows, stride, BLOCK_A: tl.constexpr):
    """Write as many appended blocks as there are rows, and return those of the rows' own cells, else -1."""
    is_row = row < num_rows
    append_cells_ptr, block_ids_ptr = step_ptr.to(tl.pointer_type(tl.int64)), step_ptr + 2 * stride
    cell = tl.load(append_cells_ptr + row, mask=is_row, other=0)
    tl.store(cells_ptr + cell, tl.load(block_ids_ptr + row, mask=is_row, other=0), mask=is_row)
    own_block = tl.full(row.shape, -1, tl.int32)
    for first in range(0, num_rows, BLOCK_A):
        place_A = first + tl.arange(0, BLOCK_A)
        cell_A = tl.load(append_cells_ptr + place_A, mask=place_A < num_rows, other=-1)
        block_id_A = tl.load(block_ids_ptr + place_A, mask=place_A < num_rows, other=-1)
        is_own = cell_A[None, :] == own_cell[:, None]
        own_block = tl.maximum(own_block, tl.max(tl.where(is_own, block_id_A[None, :], -1), 1))
    return own_block


@triton.jit
def _end_turn(turns_ptr, slot, num_slots):
    """Have the next slot's turn begin when all programs have read whose turn it is."""
    tl.debug_barrier()
    if tl.atomic_add(turns_ptr + 1, 1) == tl.num_programs(0) - 1:
        tl.store(turns_ptr + 1, 0)
        tl.store(turns_ptr, (slot + 1) % num_slots)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def begin_step_kernel(
    slots_ptr, turns_ptr, words_ptr, token_pool_ptr, cells_ptr, input_ids_ptr, slot_mapping_ptr,
    seq_lens_ptr, told_ptr, slot_stride, token_pool_stride, block_table_stride, num_rows, num_slots,
    BLOCK_SIZE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_B rows, and as many appended blocks."""
    now = read_clock()
    slot = tl.load(turns_ptr)
    step_ptr = slots_ptr + slot * slot_stride
    stride = tl.cdiv(num_rows, 4) * 4
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    is_row = row < num_rows
    lane = tl.load(step_ptr + 3 * stride + row, mask=is_row, other=-1)
    position = tl.load(step_ptr + 4 * stride + row, mask=is_row, other=0)
    order = tl.load(step_ptr + 5 * stride + row, mask=is_row, other=0)
    tl.store(words_ptr + 3 * stride + row, lane, mask=is_row)
    tl.store(words_ptr + 4 * stride + row, position, mask=is_row)
    tl.store(words_ptr + 5 * stride + row, order, mask=is_row)
    if tl.program_id(0) == 0:
        address = tl.load((step_ptr + 6 * stride).to(tl.pointer_type(tl.int64)))
        tl.store(told_ptr, address)
        keep_begin(told_ptr, now, address != 0)
    lane, is_live = lane.to(tl.int64), lane >= 0
    input_id = tl.load(token_pool_ptr + lane * token_pool_stride + position, mask=is_live, other=0)
    cell = lane * block_table_stride + position // BLOCK_SIZE
    block_id = tl.load(cells_ptr + cell, mask=is_live, other=0)
    appended = _append(step_ptr, cells_ptr, row, cell, num_rows, stride, BLOCK_A)
    block_id = tl.where(appended >= 0, appended, block_id)
    store_prepared(
        row, is_row, is_live, position, input_id, block_id, input_ids_ptr, slot_mapping_ptr, BLOCK_SIZE
    )
    tl.store(seq_lens_ptr + row, tl.where(is_live, position + 1, 0), mask=is_row)
    _end_turn(turns_ptr, slot, num_slots)


def begin_step(
    slots: StepSlots,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    cells_C: torch.Tensor,
    block_size: int,
    *,
    out: StepRows,
) -> None:
    """Take the words whose turn it is, append their blocks, and write each row's id, KV slot and length.

    The step begins by it, where it has an address to tell to and has not begun yet.

    Args:
        slots: as many words as out's count.
        token_pool_LP: int32, each lane's tokens.
        block_table_LM: int32, each lane's block ids.
        cells_C: int32: all that blocks are appended to, beginning with the block table, which has no gaps.
        block_size: tokens a block.
        out: written.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    _check(slots, token_pool_LP, block_table_LM, cells_C, out)
    num_rows = len(out.input_ids_B)
    begin_step_kernel[(triton.cdiv(num_rows, BLOCK_B),)](
        slots.slots_NW,
        slots.turns_2,
        out.words_W,
        token_pool_LP,
        cells_C,
        out.input_ids_B,
        out.slot_mapping_B,
        out.seq_lens_B,
        out.told_2,
        *(slots.slots_NW.stride(0), token_pool_LP.stride(0), block_table_LM.stride(0)),
        num_rows,
        len(slots.slots_NW),
        BLOCK_SIZE=block_size,
        BLOCK_B=BLOCK_B,
        BLOCK_A=BLOCK_A,
        num_warps=NUM_WARPS,
    )


def begin_step_ref(
    slots: StepSlots,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    cells_C: torch.Tensor,
    block_size: int,
    *,
    out: StepRows,
) -> None:
    """Do what begin_step does, in plain PyTorch, and keep no begin."""
    num_rows, num_words = len(out.input_ids_B), len(out.words_W)
    stride = (num_words - NUM_LAST_WORDS) // NUM_PARTS
    words_W = slots.slots_NW[int(slots.turns_2[0]), :num_words]
    slots.turns_2[0] = (slots.turns_2[0] + 1) % len(slots.slots_NW)
    append_cells_A = words_W[: 2 * stride].view(torch.int64)[:num_rows]
    block_ids_A, lanes_B, positions_B = (
        words_W[part * stride : part * stride + num_rows] for part in (2, 3, 4)
    )
    cells_C.scatter_(0, append_cells_A, block_ids_A)
    out.words_W[:-NUM_LAST_WORDS] = words_W[:-NUM_LAST_WORDS]
    out.told_2[0] = words_W[-NUM_LAST_WORDS:].view(torch.int64)[0]
    prepared = prepare_tokens_ref(lanes_B, positions_B, token_pool_LP, block_table_LM, block_size)
    for written, made in zip((out.input_ids_B, out.slot_mapping_B), prepared, strict=True):
        written.copy_(made)
    out.seq_lens_B.copy_((positions_B + 1).where(lanes_B >= 0, 0))


def _check(
    slots: StepSlots,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    cells_C: torch.Tensor,
    out: StepRows,
) -> None:
    num_rows = len(out.input_ids_B)
    num_words = NUM_PARTS * triton.cdiv(num_rows, 4) * 4 + NUM_LAST_WORDS
    for name, tensor, dtype, shape in (
        ("slots", slots.slots_NW, torch.int32, slots.slots_NW.shape),
        ("turns", slots.turns_2, torch.int32, (2,)),
        ("words", out.words_W, torch.int32, (num_words,)),
        ("input_ids", out.input_ids_B, torch.int32, (num_rows,)),
        ("slot_mapping", out.slot_mapping_B, torch.int64, (num_rows,)),
        ("seq_lens", out.seq_lens_B, torch.int32, (num_rows,)),
        ("told", out.told_2, torch.int64, (2,)),
        ("block_table", block_table_LM, torch.int32, (len(token_pool_LP), block_table_LM.shape[1])),
        ("cells", cells_C, torch.int32, cells_C.shape),
    ):
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be {dtype} of {tuple(shape)}, contiguous, "
                f"but are {tensor.dtype} of {tuple(tensor.shape)}"
            )
    if token_pool_LP.dtype != torch.int32 or token_pool_LP.stride(1) != 1:
        raise ValueError(f"token_pool must be int32 rows without gaps, but is {token_pool_LP.dtype}")
    if slots.slots_NW.shape[1] < num_words or slots.slots_NW.shape[1] % 4:
        raise ValueError(
            f"slots must have {num_words} words or more, in fours, but have {slots.slots_NW.shape[1]}"
        )
    if cells_C.data_ptr() != block_table_LM.data_ptr():
        raise ValueError("the block table must lie at the beginning of the cells")
