"""Adds a layer's output to the residual stream and normalizes the sum, in one pass over both.

Knows nothing about layers: without a residual it is a plain RMS norm.

Shapes: T rows, E numbers a row.
Source: fused add + RMS norm of vLLM; RMS norm (Zhang and Sennrich, 2019).
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options

MAX_ROW = 32768
"""A program holds a whole row in registers."""


@triton.jit(do_not_specialize=["num_rows"])
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    residual_stride,
    out_stride,
    num_rows,
    eps,
    E: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: ROWS whole rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_E)
    is_in = (rows < num_rows)[:, None] & (columns < E)[None, :]
    weight = tl.load(weight_ptr + columns, mask=columns < E, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + rows * x_stride + columns[None, :], mask=is_in, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual_at = residual_ptr + rows * residual_stride + columns[None, :]
        x += tl.load(residual_at, mask=is_in, other=0.0).to(tl.float32)
        # What is normalized is what the next layer reads: the rounded sum.
        total = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_at, total, mask=is_in)
        x = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / E + eps)
    out = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + rows * out_stride + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=is_in)


def add_rms_norm(
    x_TE: torch.Tensor,
    residual_TE: torch.Tensor | None,
    weight_E: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Return rms_norm(residual + x) * weight; the residual becomes the sum, in place.

    Args:
        x_TE: rows may be strided, numbers of a row may not.
        residual_TE: of x's dtype; None: x alone is normalized.
        weight_E: of any float dtype.
        eps: added to the mean of squares.
        out: (T, E), of x's dtype; may be x_TE. None: allocated.
        is_dependent: let it start while the kernel before it runs, where the device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    out_TE = torch.empty_like(x_TE, memory_format=torch.contiguous_format) if out is None else out
    check_add_rms_norm(x_TE, residual_TE, weight_E, out_TE)
    num_rows, E = x_TE.shape
    if num_rows == 0:
        return out_TE
    block_e = triton.next_power_of_2(E)
    rows, num_warps = choose_norm_tile(num_rows, block_e)
    add_rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x_TE,
        residual_TE,
        weight_E,
        out_TE,
        x_TE.stride(0),
        0 if residual_TE is None else residual_TE.stride(0),
        out_TE.stride(0),
        num_rows,
        eps,
        E=E,
        ROWS=rows,
        BLOCK_E=block_e,
        HAS_RESIDUAL=residual_TE is not None,
        num_warps=num_warps,
        **launch_options(is_dependent and can_depend(x_TE.device)),
    )
    return out_TE


def choose_norm_tile(num_rows: int, block_e: int) -> tuple[int, int]:
    """Return (rows a program, warps): short rows share a program once there are many."""
    rows = max(1, 2048 // block_e) if num_rows >= 2048 else 1
    return rows, min(max(rows * block_e // 256, 1), 16)


def add_rms_norm_ref(
    x_TE: torch.Tensor, residual_TE: torch.Tensor | None, weight_E: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return what add_rms_norm does and change the residual, in plain PyTorch."""
    if residual_TE is not None:
        residual_TE += x_TE
        x_TE = residual_TE
    x32_TE = x_TE.float()
    scale_T1 = (x32_TE.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x32_TE * scale_T1 * weight_E.float()).to(x_TE.dtype)


def check_add_rms_norm(
    x_TE: torch.Tensor, residual_TE: torch.Tensor | None, weight_E: torch.Tensor, out_TE: torch.Tensor
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    if x_TE.ndim != 2 or x_TE.shape[1] > MAX_ROW:
        raise ValueError(
            f"x must have two dimensions, rows of at most {MAX_ROW}, but has {tuple(x_TE.shape)}"
        )
    if weight_E.shape != x_TE.shape[1:] or not weight_E.is_contiguous():
        raise ValueError(
            f"weight must be contiguous, of shape ({x_TE.shape[1]},), but has {tuple(weight_E.shape)}"
        )
    for name, rows_TE in (("x", x_TE), ("residual", residual_TE), ("out", out_TE)):
        if rows_TE is None:
            continue
        if rows_TE.shape != x_TE.shape or rows_TE.dtype != x_TE.dtype or rows_TE.stride(1) != 1:
            raise ValueError(
                f"{name} must have x's shape {tuple(x_TE.shape)}, dtype {x_TE.dtype} and rows without gaps, "
                f"but is {rows_TE.dtype} of {tuple(rows_TE.shape)}, strides {rows_TE.stride()}"
            )
