"""What a program of tiled_projection_kernel does after its product: join, norm, gate or add, and store.

Knows nothing about where the product comes from.

Shapes: R rows, O outputs.
"""

import triton
import triton.language as tl

from kernels.row_squares import store_squares


@triton.jit
def join_splits(
    product, partial_ptr, counter_ptr, split, is_row, SPLITS: tl.constexpr, IS_SWAPPED: tl.constexpr
):
    """Leave the product; return whether all are there, and then their sum in the order of the splits."""
    SIZE: tl.constexpr = product.shape[0] * product.shape[1]
    first, second = tl.arange(0, product.shape[0]), tl.arange(0, product.shape[1])
    at = partial_ptr + first[:, None] * product.shape[1] + second[None, :]
    mask = is_row[None, :] if IS_SWAPPED else is_row[:, None]
    tl.store(at + split * SIZE, product, mask=mask)
    # All threads' stores come before the count, and the count before the last one's loads.
    tl.debug_barrier()
    is_last = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    tl.debug_barrier()
    total = tl.zeros_like(product)
    if is_last:
        for other in tl.range(0, SPLITS, num_stages=1):
            total += tl.load(at + other * SIZE, mask=mask, other=0.0, cache_modifier=".cg")
        tl.store(counter_ptr, 0)
    return is_last, total


@triton.jit
def _turned(product, IS_SWAPPED: tl.constexpr):
    """Return the product with rows first."""
    return tl.trans(product) if IS_SWAPPED else product


@triton.jit
def store_tile(
    product, up, prior, factor, bias_ptr, out_ptr, squares_out_ptr, row, column, first_column, num_rows,
    out_stride, O: tl.constexpr, IS_GATED: tl.constexpr, IS_SWAPPED: tl.constexpr,  # noqa: E741
):  # fmt: skip
    """Write a tile: the product, normed, gated or added to what was there."""
    is_in = (row < num_rows)[:, None] & (column < O)[None, :]
    out = _turned(product, IS_SWAPPED) * factor
    if bias_ptr is not None:
        out += tl.load(bias_ptr + column, mask=column < O, other=0.0).to(tl.float32)[None, :]
    if IS_GATED:
        out = out / (1.0 + tl.exp(-out)) * (_turned(up, IS_SWAPPED) * factor)
    out = (out + prior).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64)[:, None] * out_stride + column[None, :], out, mask=is_in)
    if squares_out_ptr is not None:
        rounded = tl.where(is_in, out.to(tl.float32), 0.0)
        store_squares(squares_out_ptr, rounded, row, first_column, num_rows, O)
