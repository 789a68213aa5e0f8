"""Looks token ids up in a run of the embedding table's rows: zeros for ids whose row is not in it.

The sum over all runs of a table is the lookup in the whole table. Knows nothing about who holds which run.

Shapes: T tokens, V rows of the table, E numbers a row.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options
from kernels.row_squares import check_squares, store_squares

BLOCK_E = 1024
NUM_WARPS = 4


@triton.jit(do_not_specialize=["first_id", "num_ids"])
def embed_rows_kernel(
    ids_ptr, table_ptr, out_ptr, squares_ptr, first_id, num_ids, out_stride,
    E: tl.constexpr, BLOCK_E: tl.constexpr, LETS_NEXT_START: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_E numbers of a token."""
    if PDL:
        # Before the next one may start: it may read at once what the kernel before this one has written.
        gdc_wait()
    if LETS_NEXT_START:
        gdc_launch_dependents()
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    row = tl.load(ids_ptr + token) - first_id
    is_here = (row >= 0) & (row < num_ids)
    at = table_ptr + row.to(tl.int64) * E + columns
    numbers = tl.load(at, mask=is_here & (columns < E), other=0.0)
    tl.store(out_ptr + token.to(tl.int64) * out_stride + columns, numbers, mask=columns < E)
    if squares_ptr is not None:
        first = tl.program_id(1) * BLOCK_E
        row = token + tl.arange(0, 1)
        store_squares(squares_ptr, numbers.to(tl.float32)[None, :], row, first, tl.num_programs(0), E)


def embed_rows(
    input_ids_T: torch.Tensor,
    table_VE: torch.Tensor,
    out_TE: torch.Tensor,
    *,
    first_id: int,
    num_ids: int,
    squares_TJ: torch.Tensor | None = None,
    is_dependent: bool = False,
) -> None:
    """Write each token's row, or zeros. Lets the next kernel start as soon as all before this one has ended.

    Args:
        input_ids_T: int32.
        table_VE: contiguous.
        out_TE: of the table's dtype; rows may be strided.
        first_id: the token id of the table's first row.
        num_ids: rows that count; those after them are padding.
        squares_TJ: float32: written, the sums of the rows' squares as in kernels.row_squares.
        is_dependent: start while the kernel before runs, where the device can, and wait for its end.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    _check(input_ids_T, table_VE, out_TE, num_ids, squares_TJ)
    num_tokens, size = len(input_ids_T), table_VE.shape[1]
    if num_tokens == 0:
        return
    embed_rows_kernel[(num_tokens, triton.cdiv(size, BLOCK_E))](
        input_ids_T,
        table_VE,
        out_TE,
        squares_TJ,
        first_id,
        num_ids,
        out_TE.stride(0),
        E=size,
        BLOCK_E=BLOCK_E,
        LETS_NEXT_START=can_depend(table_VE.device),
        num_warps=NUM_WARPS,
        **launch_options(is_dependent and can_depend(table_VE.device)),
    )


def embed_rows_ref(
    input_ids_T: torch.Tensor, table_VE: torch.Tensor, *, first_id: int, num_ids: int
) -> torch.Tensor:
    """Return what embed_rows writes, in plain PyTorch."""
    rows_T = input_ids_T.long() - first_id
    is_elsewhere_T = (rows_T < 0) | (rows_T >= num_ids)
    out_TE = torch.nn.functional.embedding(rows_T.masked_fill(is_elsewhere_T, 0), table_VE)
    return out_TE.masked_fill(is_elsewhere_T[:, None], 0.0)


def _check(
    input_ids_T: torch.Tensor,
    table_VE: torch.Tensor,
    out_TE: torch.Tensor,
    num_ids: int,
    squares_TJ: torch.Tensor | None,
) -> None:
    num_tokens, size = len(input_ids_T), table_VE.shape[1]
    if input_ids_T.dtype != torch.int32 or not input_ids_T.is_contiguous():
        raise ValueError(f"input_ids must be int32 without gaps, but are {input_ids_T.dtype}")
    if out_TE.shape != (num_tokens, size) or out_TE.dtype != table_VE.dtype or out_TE.stride(1) != 1:
        raise ValueError(
            f"out must be {table_VE.dtype} of ({num_tokens}, {size}), "
            f"but is {out_TE.dtype} of {tuple(out_TE.shape)}, strides {out_TE.stride()}"
        )
    if num_ids > len(table_VE) or not table_VE.is_contiguous():
        raise ValueError(f"the table must be contiguous, of {num_ids} rows or more, but has {len(table_VE)}")
    if squares_TJ is not None:
        check_squares(squares_TJ, num_tokens, size)
