"""small_batch's second Triton kernel: tensor cores, for more rows than the first can multiply in time.

A program's warps split the inputs between them: each multiplies its own slice, and their products are
added at the end. So each has a short chain of products, and all of a program's weights are on their
way at once. Sums between warps go through sum_last, never through tl.sum: its exchange of such sums has
each bank of shared memory written 8 to 32 times over. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, W rows of weights: outputs, or if gated their gates, then their ups; a
chunk of inputs is SLICES * SLICE.
"""

import triton
import triton.language as tl

from kernels.dependent_launch import gdc_launch_dependents, gdc_wait
from kernels.slice_sums import sum_last


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
    IS_SWAPPED: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_ADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BLOCK_O outputs of all rows, or with IS_GATED the gates and ups of BLOCK_O."""
    row, column = tl.arange(0, BLOCK_R), tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    inner = tl.arange(0, SLICES)[:, None, None] * SLICE + tl.arange(0, SLICE)[None, None, :]
    weights = _load_weights(weight_ptr, norm_weight_ptr, inner, I, O, SLICES * SLICE, BLOCK_O, IS_GATED)
    if PDL:  # weights are constants: they are on their way before the kernel before this one has ended
        gdc_launch_dependents()
        gdc_wait()
    xs = _load_rows(x_ptr + row[None, :, None] * x_stride, (row < R)[None, :, None], inner, I, SLICES * SLICE)
    out_at = out_ptr + row[:, None] * out_stride + column[None, :]
    is_out = (row < R)[:, None] & (column < O)[None, :]
    if IS_ADDED:
        prior = tl.load(out_at, mask=is_out, other=0.0)
    out = _project(xs, weights, IS_SWAPPED)
    if IS_NORMED:
        factors = _norm_factors(xs, eps, I)
        out *= factors[None, :] if IS_SWAPPED else factors[:, None]
    if IS_GATED:
        out = _gated(out, BLOCK_R, BLOCK_O, IS_SWAPPED)
    if IS_SWAPPED:  # as late as this: it costs nothing, where numbers change places for the store anyway
        out = tl.trans(out)
    if bias_ptr is not None:
        out += tl.load(bias_ptr + column, mask=column < O, other=0.0).to(tl.float32)[None, :]
    if IS_ADDED:
        out += prior.to(tl.float32)
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit
def _load_weights(
    weight_ptr,
    norm_weight_ptr,
    inner,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    CHUNK: tl.constexpr,
    BLOCK_O: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    """Return the weights chunk by chunk, (SLICES, W, SLICE) each, with the norm's in them."""
    index = tl.arange(0, 2 * BLOCK_O if IS_GATED else BLOCK_O)
    column = tl.program_id(0) * BLOCK_O + index % BLOCK_O
    row_at = weight_ptr + (column + index // BLOCK_O * O).to(tl.int64)[None, :, None] * I
    weights = _load_rows(row_at, (column < O)[None, :, None], inner, I, CHUNK)
    if norm_weight_ptr is not None:
        weights = _scaled(weights, norm_weight_ptr, inner, I, CHUNK)
    return weights


@triton.jit
def _scaled(weights, norm_weight_ptr, inner, I: tl.constexpr, CHUNK: tl.constexpr):  # noqa: E741
    """Return the weights with the norm's in them."""
    scaled = tl.tuple([])
    for chunk in tl.static_range(len(weights)):
        at = inner + chunk * CHUNK
        norm_weight = tl.load(norm_weight_ptr + at, mask=at < I, other=0.0).to(tl.float32)
        weight = weights[chunk]
        scaled = scaled + tl.tuple([(weight.to(tl.float32) * norm_weight).to(weight.dtype)])
    return scaled


@triton.jit
def _load_rows(row_at, is_row, inner, I: tl.constexpr, CHUNK: tl.constexpr):  # noqa: E741
    """Return rows chunk by chunk; all loads are on their way before any is used."""
    chunks = tl.tuple([])
    for chunk in tl.static_range((I + CHUNK - 1) // CHUNK):
        at = inner + chunk * CHUNK
        mask = is_row
        if (chunk + 1) * CHUNK > I:
            mask = is_row & (at < I)
        chunks = chunks + tl.tuple([tl.load(row_at + at, mask=mask, other=0.0)])
    return chunks


@triton.jit
def _norm_factors(xs, eps, I: tl.constexpr):  # noqa: E741
    """Return what a norm multiplies each row with."""
    squares = 0.0
    for chunk in tl.static_range(len(xs)):
        x = xs[chunk].to(tl.float32)
        # What one thread has loaded, 16 bytes, is added first.
        squares += tl.sum(tl.reshape(x * x, (x.shape[0], x.shape[1], x.shape[2] // 8, 8)), 3)
    parts = tl.permute(squares, (1, 0, 2))
    sums = sum_last(tl.reshape(parts, (parts.shape[0], 1, parts.shape[1] * parts.shape[2])))
    return tl.rsqrt(tl.reshape(sums, (parts.shape[0],)) / I + eps)


@triton.jit
def _project(xs, weights, IS_SWAPPED: tl.constexpr):
    """Return rows @ weights.T, (R, W), or with IS_SWAPPED (W, R).

    Tensor cores take 16 of the first and 8 of the second at a time.
    """
    SLICES: tl.constexpr = xs[0].shape[0]
    if IS_SWAPPED:
        products = tl.zeros((SLICES, weights[0].shape[1], xs[0].shape[1]), tl.float32)
    else:
        products = tl.zeros((SLICES, xs[0].shape[1], weights[0].shape[1]), tl.float32)
    for chunk in tl.static_range(len(xs)):
        if IS_SWAPPED:
            rows = tl.permute(xs[chunk], (0, 2, 1))
            products = tl.dot(weights[chunk], rows, products, input_precision="ieee")
        else:
            weight = tl.permute(weights[chunk], (0, 2, 1))
            products = tl.dot(xs[chunk], weight, products, input_precision="ieee")
    return sum_last(tl.permute(products, (1, 2, 0)))


@triton.jit
def _gated(out, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, IS_SWAPPED: tl.constexpr):
    """Return silu(gate) * up."""
    if IS_SWAPPED:
        pairs = tl.permute(tl.reshape(out, (2, BLOCK_O, BLOCK_R)), (1, 2, 0))
    else:
        pairs = tl.permute(tl.reshape(out, (BLOCK_R, 2, BLOCK_O)), (0, 2, 1))
    gate, up = tl.split(pairs)
    return gate / (1.0 + tl.exp(-gate)) * up
