"""small_batch's second Triton kernel: tensor cores, for more rows than the first can multiply in time.

A program's warps split the inputs between them: each multiplies its own slice, and their products are
added at the end. So each has a short chain of products, and all of a program's weights are on their
way at once. Knows nothing about models.

Shapes: R rows, I inputs, O outputs; a chunk of inputs is SLICES * SLICE.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def small_batch_dot_kernel(
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
    SLICES: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BLOCK_O outputs of all rows, or with IS_GATED the gates and ups of BLOCK_O."""
    row, column = tl.arange(0, BLOCK_R), tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    inner = tl.arange(0, SLICES)[:, None, None] * SLICE + tl.arange(0, SLICE)[None, None, :]
    weights = _load_weights(weight_ptr, norm_weight_ptr, column, inner, I, O, SLICES * SLICE)
    if IS_GATED:
        up_ptr = weight_ptr + O * I
        up_weights = _load_weights(up_ptr, norm_weight_ptr, column, inner, I, O, SLICES * SLICE)
    if PDL:  # weights are constants: they are on their way before the kernel before this one has ended
        gdc_launch_dependents()
        gdc_wait()
    xs = _load_rows(x_ptr + row[None, :, None] * x_stride, (row < R)[None, :, None], inner, I, SLICES * SLICE)
    scale = _norm_factors(xs, eps, I, IS_NORMED)
    out_at = out_ptr + row[:, None] * out_stride + column[None, :]
    is_out = (row < R)[:, None] & (column < O)[None, :]
    out = _project(xs, weights, BLOCK_R, BLOCK_O, SLICES) * scale
    if bias_ptr is not None:
        out += tl.load(bias_ptr + column, mask=column < O, other=0.0).to(tl.float32)[None, :]
    if IS_GATED:
        out = out / (1.0 + tl.exp(-out)) * (_project(xs, up_weights, BLOCK_R, BLOCK_O, SLICES) * scale)
    if IS_ADDED:
        out += tl.load(out_at, mask=is_out, other=0.0).to(tl.float32)
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit
def _load_weights(
    weight_ptr,
    norm_weight_ptr,
    column,
    inner,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    CHUNK: tl.constexpr,
):
    """Return the weights chunk by chunk, (SLICES, BLOCK_O, SLICE) each, with the norm's in them."""
    row_at = weight_ptr + column.to(tl.int64)[None, :, None] * I
    weights = _load_rows(row_at, (column < O)[None, :, None], inner, I, CHUNK)
    scaled = tl.tuple([])
    for chunk in tl.static_range((I + CHUNK - 1) // CHUNK):
        weight = weights[chunk]
        if norm_weight_ptr is not None:
            at = inner + chunk * CHUNK
            norm_weight = tl.load(norm_weight_ptr + at, mask=at < I, other=0.0).to(tl.float32)
            weight = (weight.to(tl.float32) * norm_weight).to(weight.dtype)
        scaled = scaled + tl.tuple([weight])
    return scaled


@triton.jit
def _load_rows(row_at, is_row, inner, I: tl.constexpr, CHUNK: tl.constexpr):  # noqa: E741
    """Return rows chunk by chunk; all loads are on their way before any is used."""
    chunks = tl.tuple([])
    for chunk in tl.static_range((I + CHUNK - 1) // CHUNK):
        at = inner + chunk * CHUNK
        chunks = chunks + tl.tuple([tl.load(row_at + at, mask=is_row & (at < I), other=0.0)])
    return chunks


@triton.jit
def _norm_factors(xs, eps, I: tl.constexpr, IS_NORMED: tl.constexpr):  # noqa: E741
    """Return what a norm multiplies each row with, as a column."""
    factors = 1.0
    if IS_NORMED:
        squares = 0.0
        for chunk in tl.static_range(len(xs)):
            x = xs[chunk].to(tl.float32)
            squares += tl.sum(tl.sum(x * x, 2), 0)
        factors = (1.0 / tl.sqrt(squares / I + eps))[:, None]
    return factors


@triton.jit
def _project(xs, weights, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, SLICES: tl.constexpr):
    out = tl.zeros((SLICES, BLOCK_R, BLOCK_O), tl.float32)
    for chunk in tl.static_range(len(xs)):
        out = tl.dot(xs[chunk], tl.permute(weights[chunk], (0, 2, 1)), out, input_precision="ieee")
    return tl.sum(out, 0)
