"""Biases, penalties and masked stop ids, applied to a float32 copy of the rows that have any.

Three steps: rows are copied; each row's program adds biases, counts its history and applies penalties,
and masks. A history is counted in a row of V counts, which only a fixed number of programs own, so that
lanes need no counts of their own: 0.6 GB for 1,024 lanes of Qwen3. A count is taken and put back to 0
by one atomic exchange, so each id is penalized once, however often it occurs, and a row of counts is
clean for the next row. Does what kernels.logit_edits does; knows nothing about how a token is drawn.

Shapes: B rows, V vocabulary, L lanes, P positions, X biases, Y stop ids, G programs, T tokens.
"""

import torch
import triton
import triton.language as tl

from kernels.logit_chunks import MINUS_INFINITY
from kernels.sampler_tables import LaneSampling, SamplerWorkspace

COPY_BLOCK = 4096
TOKEN_BLOCK = 1024
IN_PROMPT = tl.constexpr(1 << 30)
"""The bit of a count that says that the prompt has the id; the bits below count the output."""


@triton.jit
def copy_edited_rows_kernel(
    logits_ptr, edited_ptr, is_edited_ptr, lanes_ptr, positions_ptr, presence_ptr, frequency_ptr,
    repetition_ptr, num_biases_ptr, num_prompt_ptr, min_tokens_ptr, num_stop_ids_ptr, logits_stride, V,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK logits of a row; and the row's mark, whether it is edited."""
    row = tl.program_id(1)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    num_output = tl.load(positions_ptr + row) + 1 - tl.load(num_prompt_ptr + lane)
    is_penalized = (tl.load(presence_ptr + lane) != 0) | (tl.load(frequency_ptr + lane) != 0)
    is_penalized = is_penalized | (tl.load(repetition_ptr + lane) != 1)
    is_masked = (tl.load(num_stop_ids_ptr + lane) > 0) & (num_output < tl.load(min_tokens_ptr + lane))
    is_edited = is_penalized | is_masked | (tl.load(num_biases_ptr + lane) > 0)
    if tl.program_id(0) == 0:
        tl.store(is_edited_ptr + row, is_edited.to(tl.int32))
    if is_edited:
        ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        wide_row = row.to(tl.int64)
        logits = tl.load(logits_ptr + wide_row * logits_stride + ids, mask=ids < V, other=0.0)
        tl.store(edited_ptr + wide_row * V + ids, logits.to(tl.float32), mask=ids < V)


@triton.jit(do_not_specialize=["num_rows"])
def edit_rows_kernel(
    edited_ptr, is_edited_ptr, counts_ptr, lanes_ptr, positions_ptr, token_pool_ptr, presence_ptr,
    frequency_ptr, repetition_ptr, num_biases_ptr, bias_token_ids_ptr, bias_values_ptr, num_prompt_ptr,
    min_tokens_ptr, num_stop_ids_ptr, stop_token_ids_ptr, token_pool_stride, bias_stride, stop_stride,
    num_rows, V, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: every G-th row, with a row of counts of its own."""
    counts_row_ptr = counts_ptr + tl.program_id(0).to(tl.int64) * V
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        lane = tl.load(lanes_ptr + row)
        is_edited = 0
        if lane >= 0:
            is_edited = tl.load(is_edited_ptr + row)
        if is_edited != 0:
            wide_lane = lane.to(tl.int64)
            row_ptr = edited_ptr + tl.cast(row, tl.int64) * V
            _add_biases(
                row_ptr,
                bias_token_ids_ptr + wide_lane * bias_stride,
                bias_values_ptr + wide_lane * bias_stride,
                tl.load(num_biases_ptr + lane),
                BLOCK,
            )
            num_known = tl.load(positions_ptr + row) + 1
            num_prompt = tl.load(num_prompt_ptr + lane)
            presence = tl.load(presence_ptr + lane)
            frequency = tl.load(frequency_ptr + lane)
            repetition = tl.load(repetition_ptr + lane)
            if (presence != 0) | (frequency != 0) | (repetition != 1):
                history_ptr = token_pool_ptr + wide_lane * token_pool_stride
                _count(counts_row_ptr, history_ptr, num_prompt, num_known, BLOCK)
                _penalize(
                    row_ptr, counts_row_ptr, history_ptr, num_known, presence, frequency, repetition, BLOCK
                )
            if num_known - num_prompt < tl.load(min_tokens_ptr + lane):
                _mask(
                    row_ptr,
                    stop_token_ids_ptr + wide_lane * stop_stride,
                    tl.load(num_stop_ids_ptr + lane),
                    BLOCK,
                )


@triton.jit
def _add_biases(row_ptr, ids_ptr, values_ptr, num_biases, BLOCK: tl.constexpr):
    for first in range(0, num_biases, BLOCK):
        places = first + tl.arange(0, BLOCK)
        is_bias = places < num_biases
        ids = tl.load(ids_ptr + places, mask=is_bias, other=0)
        values = tl.load(values_ptr + places, mask=is_bias, other=0.0)
        # Atomic, as an id may be listed twice.
        tl.atomic_add(row_ptr + ids, values, mask=is_bias, sem="relaxed")
    tl.debug_barrier()


@triton.jit
def _count(counts_ptr, history_ptr, num_prompt, num_known, BLOCK: tl.constexpr):
    for first in range(0, num_known, BLOCK):
        places = first + tl.arange(0, BLOCK)
        ids = tl.load(history_ptr + places, mask=places < num_known, other=0)
        is_prompt = (places < num_known) & (places < num_prompt)
        is_output = (places < num_known) & (places >= num_prompt)
        tl.atomic_or(counts_ptr + ids, IN_PROMPT, mask=is_prompt, sem="relaxed")
        tl.atomic_add(counts_ptr + ids, 1, mask=is_output, sem="relaxed")
    tl.debug_barrier()


@triton.jit
def _penalize(
    row_ptr, counts_ptr, history_ptr, num_known, presence, frequency, repetition, BLOCK: tl.constexpr
):
    for first in range(0, num_known, BLOCK):
        places = first + tl.arange(0, BLOCK)
        is_known = places < num_known
        ids = tl.load(history_ptr + places, mask=is_known, other=0)
        zeros = tl.zeros((BLOCK,), tl.int32)
        count = tl.atomic_xchg(counts_ptr + ids, zeros, mask=is_known, sem="relaxed")
        is_first = is_known & (count != 0)
        num_output = count & (IN_PROMPT - 1)
        # Past the first-level cache, which biases did not go through.
        logits = tl.load(row_ptr + ids, mask=is_first, other=0.0, cache_modifier=".cg")
        logits = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
        logits -= frequency * num_output.to(tl.float32)
        logits -= tl.where(num_output > 0, presence, 0.0)
        tl.store(row_ptr + ids, logits, mask=is_first)
    tl.debug_barrier()


@triton.jit
def _mask(row_ptr, ids_ptr, num_ids, BLOCK: tl.constexpr):
    for first in range(0, num_ids, BLOCK):
        places = first + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + places, mask=places < num_ids, other=0)
        tl.store(row_ptr + ids, tl.full((BLOCK,), MINUS_INFINITY, tl.float32), mask=places < num_ids)


def edit_logits(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    tables: LaneSampling,
    token_pool_LP: torch.Tensor,
    workspace: SamplerWorkspace,
) -> None:
    """Write the rows with biases, penalties or masks to the workspace, after them, and mark them.

    Args:
        logits_BV: bfloat16, float16 or float32; left as they are.
        lanes_B: int32; a row of a negative lane is skipped.
        positions_B: int32, the absolute position of the row's last known token.
        tables: by lane.
        token_pool_LP: int32, each lane's tokens.
        workspace: of flavour FULL; its edited_logits_RV and is_edited_R are written.

    Raises:
        ValueError: the workspace is of another flavour.
    """
    if workspace.edited_logits_RV is None or workspace.counts_GV is None:
        raise ValueError("edits of logits need a workspace of flavour FULL")
    _copy_rows(logits_BV, lanes_B, positions_B, tables, workspace)
    num_rows, vocab_size = logits_BV.shape
    edit_rows_kernel[(min(num_rows, len(workspace.counts_GV)),)](
        workspace.edited_logits_RV,
        workspace.is_edited_R,
        workspace.counts_GV,
        lanes_B,
        positions_B,
        token_pool_LP,
        tables.presence_L,
        tables.frequency_L,
        tables.repetition_L,
        tables.num_biases_L,
        tables.bias_token_ids_LX,
        tables.bias_values_LX,
        tables.num_prompt_L,
        tables.min_tokens_L,
        tables.num_stop_ids_L,
        tables.stop_token_ids_LY,
        token_pool_LP.stride(0),
        tables.bias_token_ids_LX.stride(0),
        tables.stop_token_ids_LY.stride(0),
        num_rows,
        vocab_size,
        BLOCK=TOKEN_BLOCK,
        num_warps=8,
    )


def _copy_rows(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    tables: LaneSampling,
    workspace: SamplerWorkspace,
) -> None:
    num_rows, vocab_size = logits_BV.shape
    copy_edited_rows_kernel[(triton.cdiv(vocab_size, COPY_BLOCK), num_rows)](
        logits_BV,
        workspace.edited_logits_RV,
        workspace.is_edited_R,
        lanes_B,
        positions_B,
        tables.presence_L,
        tables.frequency_L,
        tables.repetition_L,
        tables.num_biases_L,
        tables.num_prompt_L,
        tables.min_tokens_L,
        tables.num_stop_ids_L,
        logits_BV.stride(0),
        vocab_size,
        BLOCK=COPY_BLOCK,
        num_warps=4,
    )
