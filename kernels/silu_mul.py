"""The gate of a gated MLP: silu of one half of a row times the other half.

Both may have been projected without their norm, whose factor they then get here. Knows nothing about the
projections around it.

Shapes: T rows, F numbers of the result, X = 2 * F: the gate's, then the other factor's, E hidden.
Source: SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020).
"""

import torch
import triton
import triton.language as tl
from torch.nn.functional import silu

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options
from kernels.row_squares import check_scaling, row_scale, row_scale_ref, scaling_constants

BLOCK_F = 1024
NUM_WARPS = 4


@triton.jit
def silu_mul_kernel(
    gate_up_ptr, residual_ptr, out_ptr, gate_up_stride, residual_stride, out_stride, eps,
    F: tl.constexpr, E: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_E: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_F numbers of a row. Those of a row are neighbours, and find its residual in L2."""
    BLOCKS: tl.constexpr = (F + BLOCK_F - 1) // BLOCK_F
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    columns = tl.program_id(0) % BLOCKS * BLOCK_F + tl.arange(0, BLOCK_F)
    is_in = columns < F
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    gate_at = gate_up_ptr + row * gate_up_stride + columns
    gate = tl.load(gate_at, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(gate_at + F, mask=is_in, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        scale = row_scale(residual_ptr + row * residual_stride, eps, E, BLOCK_E)
        gate, up = gate * scale, up * scale
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * out_stride + columns, out.to(out_ptr.dtype.element_ty), mask=is_in)


def silu_mul(
    gate_up_TX: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    residual_TE: torch.Tensor | None = None,
    eps: float = 0.0,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Return out_TF = silu(gate) * up, computed in float32.

    Args:
        gate_up_TX: rows of the gate's F numbers, then up's; rows may be strided.
        out: (T, F), of gate_up's dtype. None: allocated.
        residual_TE: what was projected without its norm, whose factor each row of gate_up is multiplied by;
            rows may be strided. None: gate_up is what it should be.
        eps: of that norm.
        is_dependent: let it start while the kernel before it runs, where the device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    num_rows, F = _check_gate_up(gate_up_TX)
    out_TF = gate_up_TX.new_empty((num_rows, F)) if out is None else out
    _check_out(out_TF, gate_up_TX)
    if residual_TE is not None:
        check_scaling(residual_TE, num_rows)
    if out_TF.numel() == 0:
        return out_TF
    silu_mul_kernel[(num_rows * triton.cdiv(F, BLOCK_F),)](
        gate_up_TX,
        residual_TE,
        out_TF,
        gate_up_TX.stride(0),
        0 if residual_TE is None else residual_TE.stride(0),
        out_TF.stride(0),
        eps,
        F=F,
        BLOCK_F=BLOCK_F,
        **scaling_constants(residual_TE),
        num_warps=NUM_WARPS,
        **launch_options(is_dependent and can_depend(gate_up_TX.device)),
    )
    return out_TF


def _check_gate_up(gate_up_TX: torch.Tensor) -> tuple[int, int]:
    """Return its rows and the numbers of a result's row."""
    if gate_up_TX.ndim != 2 or gate_up_TX.shape[1] % 2 or gate_up_TX.stride(1) != 1:
        raise ValueError(
            f"gate_up must have two dimensions, rows of an even number without gaps, "
            f"but has {tuple(gate_up_TX.shape)}, strides {gate_up_TX.stride()}"
        )
    return gate_up_TX.shape[0], gate_up_TX.shape[1] // 2


def _check_out(out_TF: torch.Tensor, gate_up_TX: torch.Tensor) -> None:
    num_rows, F = gate_up_TX.shape[0], gate_up_TX.shape[1] // 2
    if out_TF.shape != (num_rows, F) or out_TF.dtype != gate_up_TX.dtype or out_TF.stride(1) != 1:
        raise ValueError(
            f"out must be {gate_up_TX.dtype} of ({num_rows}, {F}), "
            f"but is {out_TF.dtype} of {tuple(out_TF.shape)}, strides {out_TF.stride()}"
        )


def silu_mul_ref(
    gate_up_TX: torch.Tensor, *, residual_TE: torch.Tensor | None = None, eps: float = 0.0
) -> torch.Tensor:
    """Return what silu_mul does, in plain PyTorch."""
    gate_TF, up_TF = gate_up_TX.float().chunk(2, -1)
    if residual_TE is not None:
        scale_T1 = row_scale_ref(residual_TE, eps)
        gate_TF, up_TF = gate_TF * scale_T1, up_TF * scale_T1
    return (silu(gate_TF) * up_TF).to(gate_up_TX.dtype)
