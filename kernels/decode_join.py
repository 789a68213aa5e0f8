"""How decode attention's kernels leave a split's result, and how the last split joins all of them.

In the order of the splits, so that a row's result depends on nothing but the row. Knows nothing about
K, V or queries.

Shapes: P cells of a tile, G heads of one KV head (padded), D head dim (padded), N = G * D numbers.
Source: FlashDecoding (Dao et al., 2023).
"""

import triton
import triton.language as tl

from kernels.decode_cells import head_numbers
from kernels.interpreter import IS_INTERPRETED


@triton.jit
def _load_results(
    partial_ptr, lse_ptr, first, num_active, offset_N, g_N, mask_N,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return a chunk of splits' results and their exponents. Other programs wrote them: not from L1."""
    parts, lses = tl.tuple([]), tl.tuple([])
    for index in tl.static_range(CHUNK):
        split = first + index
        part_ptr = partial_ptr + split * (GROUP * HEAD_DIM) + offset_N
        is_in_N = mask_N & (split < num_active)
        part_N = tl.load(part_ptr, mask=is_in_N, other=0.0, cache_modifier=".cg")
        lse_N = tl.load(
            lse_ptr + split * GROUP + g_N, mask=is_in_N, other=float("-inf"), cache_modifier=".cg"
        )
        parts, lses = parts + tl.tuple([part_N]), lses + tl.tuple([lse_N])
    return parts, lses


@triton.jit
def _join_splits(
    out_ptr, partial_ptr, lse_ptr, num_active,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write one row's heads of one KV head: its splits' results, weighted by their sums.

    Each thread joins its own numbers: nothing passes between threads.
    """
    n = tl.arange(0, GROUP_PADDED * DIM_PADDED)
    g_N = n // DIM_PADDED
    mask_N = g_N < GROUP
    offset_N = n
    if DIM_PADDED != HEAD_DIM:  # as head_numbers has them
        half_N, h_N = n % DIM_PADDED // (DIM_PADDED // 2), n % (DIM_PADDED // 2)
        mask_N = mask_N & (h_N < HEAD_DIM // 2)
        offset_N = g_N * HEAD_DIM + half_N * (HEAD_DIM // 2) + h_N
    best_N = tl.full((GROUP_PADDED * DIM_PADDED,), float("-inf"), tl.float32)
    sum_N = tl.full((GROUP_PADDED * DIM_PADDED,), 0.0, tl.float32)
    acc_N = sum_N
    for first in tl.range(0, num_active, CHUNK):
        parts, lses = _load_results(
            partial_ptr, lse_ptr, first, num_active, offset_N, g_N, mask_N, GROUP, HEAD_DIM, CHUNK
        )
        new_best_N = best_N
        for index in tl.static_range(CHUNK):
            new_best_N = tl.maximum(new_best_N, lses[index])
        # Where there is no head, there is no result: 0 keeps its weights finite.
        new_best_N = tl.where(mask_N, new_best_N, 0.0)
        factor_N = tl.exp2(best_N - new_best_N)
        sum_N, acc_N = sum_N * factor_N, acc_N * factor_N
        for index in tl.static_range(CHUNK):
            weight_N = tl.exp2(lses[index] - new_best_N)
            sum_N += weight_N
            acc_N += weight_N * parts[index]
        best_N = new_best_N
    result_N = acc_N / tl.where(mask_N, sum_N, 1.0)
    tl.store(out_ptr + offset_N, result_N.to(out_ptr.dtype.element_ty), mask=mask_N)


@triton.jit
def _log2(x):
    """Return the logarithm of numbers that are not small: one instruction instead of some thirty."""
    if IS_INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def leave_result(
    acc_GD, sum_GP, best_G, out_ptr, partial_ptr, lse_ptr, counters_ptr, pair, split, num_active,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the result where the row has one split; else leave it, and join all where it is the last."""
    d, is_in = head_numbers(HEAD_DIM, acc_GD.shape[1])
    g = tl.arange(0, acc_GD.shape[0])
    mask_GD = (g < GROUP)[:, None] & is_in[None, :]
    offset_GD = g[:, None] * HEAD_DIM + d[None, :]
    sum_G = tl.sum(sum_GP, 1)
    result_GD = acc_GD * (1.0 / sum_G)[:, None]
    if NUM_SPLITS == 1 or num_active == 1:
        tl.store(out_ptr + offset_GD, result_GD.to(out_ptr.dtype.element_ty), mask=mask_GD)
    else:
        partial_ptr += pair * (NUM_SPLITS * GROUP * HEAD_DIM)
        lse_ptr += pair * (NUM_SPLITS * GROUP)
        tl.store(partial_ptr + split * GROUP * HEAD_DIM + offset_GD, result_GD, mask=mask_GD)
        tl.store(lse_ptr + split * GROUP + g, best_G + _log2(sum_G), mask=g < GROUP)
        # All threads' stores come before the count, and the count before the last one's loads.
        tl.debug_barrier()
        num_before = tl.atomic_add(counters_ptr + pair, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        if num_before == num_active - 1:
            _join_splits(
                out_ptr, partial_ptr, lse_ptr, num_active, GROUP, GROUP_PADDED, HEAD_DIM, acc_GD.shape[1],
                CHUNK,
            )  # fmt: skip
            tl.store(counters_ptr + pair, 0)
