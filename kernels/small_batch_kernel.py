"""The Triton kernel of small_batch: a few output columns a program, every row of a small batch.

Knows nothing about models; what stands in front of and behind the product is switched by constants.

Shapes: R rows, I inputs, O outputs.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def small_batch_kernel(
    x_ptr, norm_weight_ptr, weight_ptr, bias_ptr, out_ptr,
    x_stride, out_stride, eps,
    R: tl.constexpr, I: tl.constexpr, O: tl.constexpr,  # noqa: E741
    BLOCK_I: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_O: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_GATED: tl.constexpr, IS_ADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_O outputs of all rows, or with IS_GATED the gates and ups of BLOCK_O.

    Inputs are taken in CHUNKS of BLOCK_I, all of which are on their way at once.
    """
    column = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    inner = tl.arange(0, BLOCK_I)
    is_column = column < O
    weight_at = weight_ptr + column.to(tl.int64)[:, None] * I + inner[None, :]
    weight = _load_chunks(weight_at, is_column[:, None], inner[None, :], I, BLOCK_I, CHUNKS)
    if IS_GATED:
        up_weight = _load_chunks(weight_at + O * I, is_column[:, None], inner[None, :], I, BLOCK_I, CHUNKS)
    if PDL:  # weights are constants: they are on their way before the kernel before this one has ended
        gdc_launch_dependents()
        gdc_wait()
    # All rows before any is used: a load would not move up past the stores of the row before.
    xs, priors = tl.tuple([]), tl.tuple([])
    for row in tl.static_range(R):
        x_at = x_ptr + row * x_stride + inner
        xs = xs + tl.tuple([_load_chunks(x_at, inner >= 0, inner, I, BLOCK_I, CHUNKS)])
        if IS_ADDED:
            priors = priors + tl.tuple([tl.load(out_ptr + row * out_stride + column, mask=is_column)])
    weight = _scaled(weight, norm_weight_ptr, inner, I, BLOCK_I)
    if IS_GATED:
        up_weight = _scaled(up_weight, norm_weight_ptr, inner, I, BLOCK_I)
    for row in tl.static_range(R):
        x = xs[row]
        scale = _norm_factor(x, eps, I, IS_NORMED)
        out = _product(weight, x) * scale
        if bias_ptr is not None:
            out += tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32)
        if IS_GATED:
            out = out / (1.0 + tl.exp(-out)) * (_product(up_weight, x) * scale)
        if IS_ADDED:
            out += priors[row].to(tl.float32)
        tl.store(out_ptr + row * out_stride + column, out.to(out_ptr.dtype.element_ty), mask=is_column)


@triton.jit
def _load_chunks(
    at, is_row, inner,
    I: tl.constexpr, BLOCK_I: tl.constexpr, CHUNKS: tl.constexpr,  # noqa: E741
):  # fmt: skip
    """Return the numbers at these addresses, chunk by chunk; what lies behind the inputs is 0."""
    chunks = tl.tuple([])
    for chunk in tl.static_range(CHUNKS):
        mask = is_row & (inner + chunk * BLOCK_I < I)
        chunks = chunks + tl.tuple([tl.load(at + chunk * BLOCK_I, mask=mask, other=0.0)])
    return chunks


@triton.jit
def _scaled(weight, norm_weight_ptr, inner, I: tl.constexpr, BLOCK_I: tl.constexpr):  # noqa: E741
    """Return the weight in float32, with the norm's weight in it."""
    scaled = tl.tuple([])
    for chunk in tl.static_range(len(weight)):
        part = weight[chunk].to(tl.float32)
        if norm_weight_ptr is not None:
            at = inner + chunk * BLOCK_I
            part *= tl.load(norm_weight_ptr + at, mask=at < I, other=0.0).to(tl.float32)[None, :]
        scaled = scaled + tl.tuple([part])
    return scaled


@triton.jit
def _product(weight, x):
    """Return the sums of the products."""
    total = weight[0] * x[0].to(tl.float32)[None, :]
    for chunk in tl.static_range(1, len(weight)):
        total += weight[chunk] * x[chunk].to(tl.float32)[None, :]
    return tl.sum(total, 1)


@triton.jit
def _norm_factor(x, eps, I: tl.constexpr, IS_NORMED: tl.constexpr):  # noqa: E741
    """Return what a norm multiplies the row with: one number, so it can follow the sum."""
    factor = 1.0
    if IS_NORMED:
        squares = x[0].to(tl.float32) * x[0].to(tl.float32)
        for chunk in tl.static_range(1, len(x)):
            squares += x[chunk].to(tl.float32) * x[chunk].to(tl.float32)
        factor = 1.0 / tl.sqrt(tl.sum(squares) / I + eps)
    return factor
