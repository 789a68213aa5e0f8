"""Log-probabilities of each row's drawn token and its likeliest ones, without sorting the row.

The first kernel leaves each chunk's maximum and sum; the second, one program a row, takes the likeliest
token k times, each time from the chunk with the largest maximum that is left. Only rows that ask are
read. Knows nothing about edits or draws: the distribution is the model's own.

Shapes: B rows, V vocabulary, L lanes, C chunks of a row, padded to a power of two, K columns.
"""

import torch
import triton
import triton.language as tl

from kernels.logit_chunks import HIGHEST_LOGIT, LOWEST_LOGIT, MINUS_INFINITY, NO_ID, load_logits
from kernels.sampler_tables import MAX_LOGPROBS, LaneSampling, SamplerWorkspace

CHUNKS_PER_PROGRAM = 4


@triton.jit
def sum_chunks_kernel(
    logits_ptr, lanes_ptr, num_logprobs_plus_one_ptr, chunk_max_ptr, chunk_sum_ptr, logits_stride, V,
    num_chunks, CHUNK: tl.constexpr, CHUNKS_PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """One program: CHUNKS_PER_PROGRAM neighbouring chunks of a row that asks for log-probabilities."""
    row = tl.program_id(1)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    if tl.load(num_logprobs_plus_one_ptr + lane) == 0:
        return
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    first = tl.program_id(0) * CHUNKS_PER_PROGRAM
    for chunk in range(first, tl.minimum(first + CHUNKS_PER_PROGRAM, num_chunks)):
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        logits = load_logits(row_ptr, row_ptr, 0, ids, ids < V, False)
        maximum = tl.max(logits, 0)
        tl.store(chunk_max_ptr + row * num_chunks + chunk, maximum)
        weights = tl.where(ids < V, tl.exp(logits - maximum), 0.0)
        tl.store(chunk_sum_ptr + row * num_chunks + chunk, tl.sum(weights, 0))


@triton.jit
def top_logprobs_kernel(
    logits_ptr, lanes_ptr, num_logprobs_plus_one_ptr, token_ids_ptr, chunk_max_ptr, chunk_sum_ptr,
    out_ids_ptr, out_logprobs_ptr, logits_stride, out_stride, V, num_chunks, CHUNK: tl.constexpr,
    NUM_CHUNKS_POW2: tl.constexpr,
):  # fmt: skip
    """One program: a row that asks for log-probabilities."""
    row = tl.program_id(0)
    lane = tl.load(lanes_ptr + row)
    if lane < 0:
        return
    num_columns = tl.load(num_logprobs_plus_one_ptr + lane)
    if num_columns == 0:
        return
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    chunks_C = tl.arange(0, NUM_CHUNKS_POW2)
    is_chunk_C = chunks_C < num_chunks
    place_C = row * num_chunks + chunks_C
    left_C = tl.load(chunk_max_ptr + place_C, mask=is_chunk_C, other=MINUS_INFINITY)
    sum_C = tl.load(chunk_sum_ptr + place_C, mask=is_chunk_C, other=0.0)
    maximum = tl.max(left_C, 0)
    total = tl.sum(sum_C * tl.exp(left_C - maximum), 0)
    norm = maximum + tl.log(total)
    token = tl.load(token_ids_ptr + row)
    tl.store(out_ids_ptr + row * out_stride, token)
    drawn = load_logits(row_ptr, row_ptr, 0, token, token < V, False)
    tl.store(out_logprobs_ptr + row * out_stride, _logprob(drawn, norm))
    taken_logit = HIGHEST_LOGIT * 2
    taken = -1
    for column in range(1, tl.minimum(num_columns, V + 1)):
        logit = tl.max(left_C, 0)
        chunk = tl.min(tl.where(left_C == logit, chunks_C, NO_ID), 0)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        logits = load_logits(row_ptr, row_ptr, 0, ids, ids < V, False)
        # Taken so far are the larger ones, and of equal ones the lower ids.
        is_left = (logits < taken_logit) | ((logits == taken_logit) & (ids > taken))
        taken = tl.min(tl.where(is_left & (logits == logit) & (ids < V), ids, NO_ID), 0)
        taken_logit = logit
        tl.store(out_ids_ptr + row * out_stride + column, taken)
        tl.store(out_logprobs_ptr + row * out_stride + column, _logprob(logit, norm))
        is_left = (logits < taken_logit) | ((logits == taken_logit) & (ids > taken))
        rest = tl.max(tl.where(is_left & (ids < V), logits, MINUS_INFINITY), 0)
        left_C = tl.where(chunks_C == chunk, rest, left_C)


@triton.jit
def _logprob(logit, norm):
    return tl.where(logit > LOWEST_LOGIT, logit - norm, MINUS_INFINITY)


def top_logprobs(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    token_ids_B: torch.Tensor,
    tables: LaneSampling,
    workspace: SamplerWorkspace,
    out_ids_BK: torch.Tensor,
    out_logprobs_BK: torch.Tensor,
) -> None:
    """Write each asking row's drawn token and its likeliest ones, of equal ones the lowest ids first.

    Args:
        logits_BV: bfloat16, float16 or float32, the model's own.
        lanes_B: int32; a row of a negative lane is skipped.
        token_ids_B: int32, the tokens drawn.
        tables: by lane; num_logprobs_plus_one_L tells how many entries a row asks for.
        workspace: its chunk_max_RC and chunk_sum_RC are written.
        out_ids_BK: int32; what a row does not ask for is left as it is.
        out_logprobs_BK: float32, like out_ids_BK.

    Raises:
        ValueError: an output's shape or dtype does not fit.
    """
    _check(len(lanes_B), out_ids_BK, out_logprobs_BK)
    _sum_chunks(logits_BV, lanes_B, tables, workspace)
    num_rows, vocab_size = logits_BV.shape
    num_chunks = triton.cdiv(vocab_size, workspace.chunk_size)
    top_logprobs_kernel[(num_rows,)](
        logits_BV,
        lanes_B,
        tables.num_logprobs_plus_one_L,
        token_ids_B,
        workspace.chunk_max_RC,
        workspace.chunk_sum_RC,
        out_ids_BK,
        out_logprobs_BK,
        logits_BV.stride(0),
        out_ids_BK.stride(0),
        vocab_size,
        num_chunks,
        CHUNK=workspace.chunk_size,
        NUM_CHUNKS_POW2=triton.next_power_of_2(num_chunks),
        num_warps=4,
    )


def _sum_chunks(
    logits_BV: torch.Tensor, lanes_B: torch.Tensor, tables: LaneSampling, workspace: SamplerWorkspace
) -> None:
    num_rows, vocab_size = logits_BV.shape
    num_chunks = triton.cdiv(vocab_size, workspace.chunk_size)
    sum_chunks_kernel[(triton.cdiv(num_chunks, CHUNKS_PER_PROGRAM), num_rows)](
        logits_BV,
        lanes_B,
        tables.num_logprobs_plus_one_L,
        workspace.chunk_max_RC,
        workspace.chunk_sum_RC,
        logits_BV.stride(0),
        vocab_size,
        num_chunks,
        CHUNK=workspace.chunk_size,
        CHUNKS_PER_PROGRAM=CHUNKS_PER_PROGRAM,
        num_warps=1,
    )


def _check(num_rows: int, ids_BK: torch.Tensor, logprobs_BK: torch.Tensor) -> None:
    shape = (num_rows, MAX_LOGPROBS + 1)
    for name, tensor_BK, dtype in (("ids", ids_BK, torch.int32), ("logprobs", logprobs_BK, torch.float32)):
        if tensor_BK.shape != shape or tensor_BK.dtype != dtype or not tensor_BK.is_contiguous():
            raise ValueError(
                f"out_{name} must be {dtype} of {shape}, contiguous, "
                f"but is {tensor_BK.dtype} of {tuple(tensor_BK.shape)}"
            )
