"""The Triton kernel of small_batch: a few output columns a program, every row of a small batch.

Knows nothing about models; what stands in front of and behind the product is switched by constants.

Shapes: R rows, I inputs, O outputs.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def small_batch_kernel(
    x_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    x_stride,
    out_stride,
    eps,
    R: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_GATED: tl.constexpr, IS_ADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_O outputs of all rows, or with IS_GATED the gates and ups of BLOCK_O."""
    column = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    inner = tl.arange(0, BLOCK_I)
    is_column, is_inner = column < O, inner < I
    is_in = is_column[:, None] & is_inner[None, :]
    weight_at = weight_ptr + column.to(tl.int64)[:, None] * I + inner[None, :]
    weight = tl.load(weight_at, mask=is_in, other=0.0)
    if IS_GATED:
        up_weight = tl.load(weight_at + O * I, mask=is_in, other=0.0)
    if PDL:  # weights are constants: they are on their way before the kernel before this one has ended
        gdc_launch_dependents()
        gdc_wait()
    # All rows before any is used: a load would not move up past the stores of the row before.
    xs, priors = tl.tuple([]), tl.tuple([])
    for row in tl.static_range(R):
        xs = xs + tl.tuple([tl.load(x_ptr + row * x_stride + inner, mask=is_inner, other=0.0)])
        if IS_ADDED:
            priors = priors + tl.tuple([tl.load(out_ptr + row * out_stride + column, mask=is_column)])
    weight = _scaled(weight, norm_weight_ptr, inner, is_inner)
    if IS_GATED:
        up_weight = _scaled(up_weight, norm_weight_ptr, inner, is_inner)
    for row in tl.static_range(R):
        x = xs[row].to(tl.float32)
        scale = _norm_factor(x, eps, I, IS_NORMED)
        out = tl.sum(weight * x[None, :], 1) * scale
        if bias_ptr is not None:
            out += tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32)
        if IS_GATED:
            out = out / (1.0 + tl.exp(-out)) * (tl.sum(up_weight * x[None, :], 1) * scale)
        if IS_ADDED:
            out += priors[row].to(tl.float32)
        tl.store(out_ptr + row * out_stride + column, out.to(out_ptr.dtype.element_ty), mask=is_column)


@triton.jit
def _scaled(weight, norm_weight_ptr, inner, is_inner):
    """Return the weight in float32, with the norm's weight in it."""
    weight = weight.to(tl.float32)
    if norm_weight_ptr is not None:
        weight *= tl.load(norm_weight_ptr + inner, mask=is_inner, other=0.0).to(tl.float32)[None, :]
    return weight


@triton.jit
def _norm_factor(x, eps, I: tl.constexpr, IS_NORMED: tl.constexpr):  # noqa: E741
    """Return what a norm multiplies the row with: one number, so it can follow the sum."""
    factor = 1.0
    if IS_NORMED:
        factor = 1.0 / tl.sqrt(tl.sum(x * x) / I + eps)
    return factor
