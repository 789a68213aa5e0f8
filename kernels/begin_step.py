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

from kernels.dependent_launch import can_depend, gdc_launch_dependents
from kernels.prepare import prepare_tokens_ref, store_prepared
from kernels.step_times import read_clock

FEW_ROWS, MANY_ROWS = 64, 256
"""Appended blocks that a row looks at at once, of which it looks at all."""
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
def _load_row(slots_ptr, turns_ptr, row, slot_stride, stride, num_slots, NUM_SLOTS_POW2: tl.constexpr):
    """Return whose turn it is, and the row's lane and position there.

    They are loaded from all slots beside the turn: behind it would be one wait more in series. What other
    slots hold, which may just be written, is thrown away.
    """
    slots_N = tl.arange(0, NUM_SLOTS_POW2)
    lane_ptr_N = slots_ptr + slots_N * slot_stride + 3 * stride + row
    lane_N = tl.load(lane_ptr_N, mask=slots_N < num_slots, other=0)
    position_N = tl.load(lane_ptr_N + stride, mask=slots_N < num_slots, other=0)
    slot = tl.load(turns_ptr)
    is_turn_N = slots_N == slot
    return slot, tl.sum(tl.where(is_turn_N, lane_N, 0), 0), tl.sum(tl.where(is_turn_N, position_N, 0), 0)


@triton.jit
def _load_appended(step_ptr, first, num_rows, stride, BLOCK_A: tl.constexpr):
    """Return the cells and the ids of the appended blocks from the first on; -1 where there is none."""
    place_A = first + tl.arange(0, BLOCK_A)
    is_appended_A = place_A < num_rows
    cell_A = tl.load(step_ptr.to(tl.pointer_type(tl.int64)) + place_A, mask=is_appended_A, other=-1)
    return cell_A, tl.load(step_ptr + 2 * stride + place_A, mask=is_appended_A, other=-1)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def begin_step_kernel(
    slots_ptr, turns_ptr, words_ptr, token_pool_ptr, cells_ptr, input_ids_ptr, slot_mapping_ptr,
    seq_lens_ptr, told_ptr, slot_stride, token_pool_stride, block_table_stride, num_rows, num_slots,
    BLOCK_SIZE: tl.constexpr, BLOCK_A: tl.constexpr, HAS_MORE: tl.constexpr,
    NUM_SLOTS_POW2: tl.constexpr, LETS_NEXT_START: tl.constexpr,
):  # fmt: skip
    """One program: a row, and an appended block. Loads are under way before any of them is looked at."""
    if LETS_NEXT_START:
        gdc_launch_dependents()
    now = read_clock()
    row = tl.program_id(0)
    begin = tl.load(told_ptr + 1, mask=row == 0, other=0)
    stride = tl.cdiv(num_rows, 4) * 4
    slot, lane, position = _load_row(
        slots_ptr, turns_ptr, row, slot_stride, stride, num_slots, NUM_SLOTS_POW2
    )
    is_live = lane >= 0
    cell = lane.to(tl.int64) * block_table_stride + position // BLOCK_SIZE
    input_id = tl.load(
        token_pool_ptr + lane.to(tl.int64) * token_pool_stride + position, mask=is_live, other=0
    )
    block_id = tl.load(cells_ptr + cell, mask=is_live, other=0)
    step_ptr = slots_ptr + slot * slot_stride
    order = tl.load(step_ptr + 5 * stride + row)
    append_cell = tl.load(step_ptr.to(tl.pointer_type(tl.int64)) + row)
    append_id = tl.load(step_ptr + 2 * stride + row)
    address = tl.load((step_ptr + 6 * stride).to(tl.pointer_type(tl.int64)), mask=row == 0, other=0)
    cell_A, id_A = _load_appended(step_ptr, 0, num_rows, stride, BLOCK_A)
    # Relaxed: only the load of the slot, which is never negative, must come before, for the mask's sake.
    ticket = tl.atomic_add(turns_ptr + 1, 1, mask=slot >= 0, sem="relaxed")
    tl.store(words_ptr + 3 * stride + row, lane)
    tl.store(words_ptr + 4 * stride + row, position)
    tl.store(words_ptr + 5 * stride + row, order)
    tl.store(cells_ptr + append_cell, append_id)
    tl.store(seq_lens_ptr + row, tl.where(is_live, position + 1, 0))
    tl.store(told_ptr, address, mask=row == 0)
    tl.store(told_ptr + 1, now + begin, mask=(address != 0) & (begin <= 0))
    own_A = tl.where(cell_A == cell, id_A, -1)
    if HAS_MORE:
        for first in range(BLOCK_A, num_rows, BLOCK_A):
            cell_A, id_A = _load_appended(step_ptr, first, num_rows, stride, BLOCK_A)
            own_A = tl.maximum(own_A, tl.where(cell_A == cell, id_A, -1))
    appended = tl.max(own_A, 0)
    block_id = tl.where(appended >= 0, appended, block_id)
    store_prepared(
        row, True, is_live, position, input_id, block_id, input_ids_ptr, slot_mapping_ptr, BLOCK_SIZE
    )
    if ticket == num_rows - 1:
        tl.store(turns_ptr + 1, 0)
        tl.store(turns_ptr, tl.where(slot + 1 == num_slots, 0, slot + 1))


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

    The step begins by it, where it has an address to tell to and has not begun yet. Starts when all before it
    has ended; lets the next kernel start at once, which must not let others start before this one has ended.

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
    begin_step_kernel[(num_rows,)](
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
        BLOCK_A=FEW_ROWS if num_rows <= FEW_ROWS else MANY_ROWS,
        HAS_MORE=num_rows > MANY_ROWS,
        NUM_SLOTS_POW2=triton.next_power_of_2(len(slots.slots_NW)),
        LETS_NEXT_START=can_depend(out.input_ids_B.device),
        num_warps=1,
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
