"""The Triton kernel that takes rows of the residual to heads that attention can read, in one launch.

A tile of the QKV projection holds one head: what qk_norm_rope_store does follows the product, rounded at the
same places. Positions and slots are read before gdc_wait, so what wrote them must have ended before the
kernels in front began, as for qkv_decode. Knows nothing about models.

Shapes: R rows, I inputs, O = (H + 2 * K) * D outputs, H query heads, K KV heads, D head dim.
"""

import triton
import triton.language as tl

from kernels.row_squares import load_squares
from kernels.tiled_projection_kernel import begin, multiply


@triton.jit
def _store_rotated(
    x, at_ptr, is_in, cos_sin_ptr, weight_ptr, position, cos_sin_stride, eps, D: tl.constexpr
):  # fmt: skip
    """Write heads normalized and rotated, at a pointer for each row."""
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, HALF)
    angle_ptr = cos_sin_ptr + position[:, None] * cos_sin_stride + d[None, :]
    cos, sin = tl.load(angle_ptr).to(tl.float32), tl.load(angle_ptr + HALF).to(tl.float32)
    low, high = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1)))
    if weight_ptr is not None:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        low = low * scale * tl.load(weight_ptr + d).to(tl.float32)[None, :]
        high = high * scale * tl.load(weight_ptr + HALF + d).to(tl.float32)[None, :]
    at = at_ptr[:, None] + d[None, :]
    tl.store(at, (low * cos - high * sin).to(at.dtype.element_ty), mask=is_in[:, None])
    tl.store(at + HALF, (high * cos + low * sin).to(at.dtype.element_ty), mask=is_in[:, None])


@triton.jit
def _store_head(
    x, head, row, num_rows, position, slot, cos_sin_ptr, q_weight_ptr, k_weight_ptr, key_ptr, value_ptr,
    out_q_ptr, cos_sin_stride, out_stride, eps, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write one head of some rows where it belongs; x is of the cache's dtype."""
    is_row = row < num_rows
    is_stored = is_row & (slot >= 0)
    cell = slot * (K * D)  # int64 as slot is: it passes 2**31 in a large cache
    if head < H:
        query_ptr = out_q_ptr + row.to(tl.int64) * out_stride + head * D
        _store_rotated(
            x.to(tl.float32), query_ptr, is_row, cos_sin_ptr, q_weight_ptr, position, cos_sin_stride, eps, D
        )
    elif head < H + K:
        cell_ptr = key_ptr + cell + (head - H) * D
        _store_rotated(
            x.to(tl.float32), cell_ptr, is_stored, cos_sin_ptr, k_weight_ptr, position, cos_sin_stride, eps, D
        )
    else:
        cell_ptr = value_ptr + cell + (head - H - K) * D
        tl.store(cell_ptr[:, None] + tl.arange(0, D)[None, :], x, mask=is_stored[:, None])


@triton.jit(do_not_specialize=["num_rows"])
def qkv_store_kernel(
    x, weight, weight_ptr, bias_ptr, squares_ptr, positions_ptr, cos_sin_ptr, q_weight_ptr, k_weight_ptr,
    key_ptr, value_ptr, slots_ptr, out_q_ptr, x_stride, cos_sin_stride, out_stride, num_rows, eps, head_eps,
    I: tl.constexpr, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,  # noqa: E741
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, STAGES: tl.constexpr, IS_SWAPPED: tl.constexpr,
    IS_TMA: tl.constexpr, IS_READ_AHEAD: tl.constexpr, IS_EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: one head of BLOCK_R rows."""
    IS_WHOLE: tl.constexpr = I % BLOCK_I == 0
    NUM_INPUTS: tl.constexpr = (I + BLOCK_I - 1) // BLOCK_I * BLOCK_I
    O: tl.constexpr = (H + 2 * K) * D  # noqa: E741
    num_row_blocks = tl.cdiv(num_rows, BLOCK_R)
    # Programs that share weights are neighbours.
    row_block, head = tl.program_id(0) % num_row_blocks, tl.program_id(0) // num_row_blocks
    first_row, first_column = row_block * BLOCK_R, head * D
    row = first_row + tl.arange(0, BLOCK_R)
    # Padding's positions may be negative.
    position = tl.maximum(tl.load(positions_ptr + row, mask=row < num_rows, other=0), 0).to(tl.int64)
    slot = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    if PDL:
        begin(
            weight_ptr, row_block == 0, first_column, 0, I, O, D, NUM_INPUTS, IS_READ_AHEAD and IS_WHOLE,
            False, IS_EARLY,
        )  # fmt: skip
    squares = load_squares(squares_ptr, row, num_rows, I)
    product, _ = multiply(
        x, weight, None, x_stride, first_row, num_rows, first_column, 0,
        I, O, BLOCK_R, D, BLOCK_I, NUM_INPUTS, STAGES, IS_SWAPPED, IS_TMA, IS_WHOLE, False,
    )  # fmt: skip
    if IS_SWAPPED:
        product = tl.trans(product)
    product *= (1.0 / tl.sqrt(tl.sum(squares, 1) / I + eps))[:, None]
    if bias_ptr is not None:
        product += tl.load(bias_ptr + first_column + tl.arange(0, D)).to(tl.float32)[None, :]
    _store_head(
        product.to(key_ptr.dtype.element_ty), head, row, num_rows, position, slot, cos_sin_ptr, q_weight_ptr,
        k_weight_ptr, key_ptr, value_ptr, out_q_ptr, cos_sin_stride, out_stride, head_eps, H, K, D,
    )  # fmt: skip
