"""Sums of the squares of rows, in chunks: what a norm of those rows needs to know.

Whoever writes rows sums each chunk on the way, and whoever reads them adds the chunks up in their
order. Knows nothing about what is done with the norm.

Shapes: R rows, I numbers a row, J = I / SQUARES_CHUNK, rounded up, sums a row, E hidden.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options

SQUARES_CHUNK = 32
"""Numbers that one sum is of."""
CHUNK = tl.constexpr(SQUARES_CHUNK)


@triton.jit
def row_scale(row_ptr, eps, I: tl.constexpr, BLOCK_I: tl.constexpr):  # noqa: E741
    """Return what a norm without weight multiplies the numbers of this row by."""
    column = tl.arange(0, BLOCK_I)
    x = tl.load(row_ptr + column, mask=column < I, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 0) / I + eps)


@triton.jit
def load_squares(squares_ptr, row, num_rows, NUM_SQUARED: tl.constexpr):
    """Return the sums of these rows, (rows, J padded)."""
    NUM_SUMS: tl.constexpr = (NUM_SQUARED + CHUNK - 1) // CHUNK
    chunk = tl.arange(0, triton.next_power_of_2(NUM_SUMS))
    mask = (row < num_rows)[:, None] & (chunk < NUM_SUMS)[None, :]
    return tl.load(squares_ptr + row[:, None] * NUM_SUMS + chunk[None, :], mask=mask, other=0.0)


@triton.jit
def store_squares(squares_ptr, numbers, row, first_column, num_rows, NUM_SQUARED: tl.constexpr):
    """Write the sums of a tile of whole chunks; numbers outside the rows are 0."""
    CHUNKS: tl.constexpr = numbers.shape[1] // CHUNK
    NUM_SUMS: tl.constexpr = (NUM_SQUARED + CHUNK - 1) // CHUNK
    chunk = first_column // CHUNK + tl.arange(0, CHUNKS)
    sums = tl.sum(tl.reshape(numbers * numbers, (numbers.shape[0], CHUNKS, CHUNK)), 2)
    mask = (row < num_rows)[:, None] & (chunk < NUM_SUMS)[None, :]
    tl.store(squares_ptr + row[:, None] * NUM_SUMS + chunk[None, :], sums, mask=mask)


@triton.jit
def sum_squares_kernel(
    x_ptr,
    squares_ptr,
    x_stride,
    I: tl.constexpr,  # noqa: E741
    BLOCK_I: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: one row."""
    row, column = tl.program_id(0) + tl.arange(0, 1), tl.arange(0, BLOCK_I)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    at = x_ptr + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    x = tl.load(at, mask=(column < I)[None, :], other=0.0).to(tl.float32)
    store_squares(squares_ptr, x, row, 0, tl.num_programs(0), I)


def sum_squares(
    x_RI: torch.Tensor, out: torch.Tensor | None = None, *, is_dependent: bool = False
) -> torch.Tensor:
    """Return squares_RJ of x, in float32.

    Args:
        x_RI: rows may be strided.
        out: (R, J), in float32. None: allocated.
        is_dependent: let it start while the kernel before it runs, where the device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    num_rows, num_inputs = x_RI.shape
    shape = (num_rows, num_sums(num_inputs))
    squares_RJ = x_RI.new_empty(shape, dtype=torch.float32) if out is None else out
    check_squares(squares_RJ, num_rows, num_inputs)
    block_i = max(SQUARES_CHUNK, triton.next_power_of_2(num_inputs))
    sum_squares_kernel[(num_rows,)](
        x_RI,
        squares_RJ,
        x_RI.stride(0),
        I=num_inputs,
        BLOCK_I=block_i,
        num_warps=min(max(block_i // 256, 1), 8),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return squares_RJ


def check_scaling(residual_RE: torch.Tensor, num_rows: int) -> None:
    """Raise ValueError where row_scale cannot read a factor for each of so many rows."""
    if residual_RE.ndim != 2 or len(residual_RE) != num_rows or residual_RE.stride(1) != 1:
        raise ValueError(
            f"residual must have {num_rows} rows without gaps, "
            f"but is of {tuple(residual_RE.shape)}, strides {residual_RE.stride()}"
        )


def scaling_constants(residual_RE: torch.Tensor | None) -> dict[str, int]:
    """Return what a kernel calls row_scale with, where it does."""
    num_hidden = 1 if residual_RE is None else residual_RE.shape[1]
    return {"E": num_hidden, "BLOCK_E": triton.next_power_of_2(num_hidden)}


def num_sums(num_inputs: int) -> int:
    """Return J."""
    return -(-num_inputs // SQUARES_CHUNK)


def check_squares(squares_RJ: torch.Tensor, num_rows: int, num_inputs: int) -> None:
    """Raise ValueError where these cannot be the sums of so many rows of so many numbers."""
    shape = (num_rows, num_sums(num_inputs))
    if squares_RJ.shape != shape or squares_RJ.dtype != torch.float32 or not squares_RJ.is_contiguous():
        raise ValueError(
            f"squares must be contiguous float32 of {shape}, "
            f"but are {squares_RJ.dtype} of {tuple(squares_RJ.shape)}"
        )


def row_scale_ref(x_RI: torch.Tensor, eps: float) -> torch.Tensor:
    """Return what row_scale does, for each row, (R, 1) in float32."""
    return (x_RI.float().square().mean(1, keepdim=True) + eps).rsqrt()


def sum_squares_ref(x_RI: torch.Tensor) -> torch.Tensor:
    """Return what sum_squares does, in plain PyTorch."""
    num_inputs = x_RI.shape[1]
    padded = torch.nn.functional.pad(x_RI.float(), (0, -num_inputs % SQUARES_CHUNK))
    squares_RJ: torch.Tensor = padded.square().unflatten(1, (-1, SQUARES_CHUNK)).sum(2)
    return squares_RJ
