"""How decode attention's kernels leave a split's result, and how the last split joins all of them.

In the order of the splits, so that a row's result depends on nothing but the row. Knows nothing about
K, V or queries.

Shapes: G heads of one KV head, padded to 16 (H: to a power of two), D head dim (padded), J splits of a
row, C of them joined at once.
Source: FlashDecoding (Dao et al., 2023).
"""

import triton
import triton.language as tl


@triton.jit
def _join_splits(
    partial_ptr, lse_ptr, num_active,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    NUM_SPLITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Return out_GD of one row and KV head: its splits' results, weighted by their sums."""
    g = tl.arange(0, GROUP_PADDED)
    d = tl.arange(0, DIM_PADDED)
    split = tl.arange(0, NUM_SPLITS)
    lse_JG = tl.load(
        lse_ptr + split[:, None] * GROUP + g[None, :],
        mask=(split < num_active)[:, None] & (g < GROUP)[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    # Padded heads have no result: 0 keeps their weights finite.
    best_G = tl.where(g < GROUP, tl.max(lse_JG, 0), 0.0)
    sum_G = tl.where(g < GROUP, tl.sum(tl.exp2(lse_JG - best_G[None, :]), 0), 1.0)
    acc_GD = tl.zeros((GROUP_PADDED, DIM_PADDED), tl.float32)
    for first in tl.static_range(0, NUM_SPLITS, CHUNK):
        chunk = first + tl.arange(0, CHUNK)
        index_CG = chunk[:, None] * GROUP + g[None, :]
        mask_CG = (chunk < num_active)[:, None] & (g < GROUP)[None, :]
        lse_CG = tl.load(lse_ptr + index_CG, mask=mask_CG, other=float("-inf"), cache_modifier=".cg")
        weight_CG = tl.exp2(lse_CG - best_G[None, :]) / sum_G[None, :]
        part_CGD = tl.load(
            partial_ptr + index_CG[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=mask_CG[:, :, None] & (d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        acc_GD += tl.sum(weight_CG[:, :, None] * part_CGD, 0)
    return acc_GD


@triton.jit
def leave_result(
    acc_GD, sum_G, best_G, out_ptr, partial_ptr, lse_ptr, counters_ptr, pair, split, num_active,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the result where the row has one split; else leave it, and join all where it is the last."""
    partial_ptr += pair * (NUM_SPLITS * GROUP * HEAD_DIM)
    lse_ptr += pair * (NUM_SPLITS * GROUP)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    g, d = tl.arange(0, acc_GD.shape[0]), tl.arange(0, acc_GD.shape[1])
    mask_GD = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    offset_GD = g[:, None] * HEAD_DIM + d[None, :]
    result_GD = acc_GD / sum_G[:, None]
    if num_active == 1:
        tl.store(out_ptr + offset_GD, result_GD.to(dtype), mask=mask_GD)
    else:
        tl.store(partial_ptr + split * GROUP * HEAD_DIM + offset_GD, result_GD, mask=mask_GD)
        tl.store(lse_ptr + split * GROUP + g, best_G + tl.log2(sum_G), mask=g < GROUP)
        # All threads' stores come before the count, and the count before the last one's loads.
        tl.debug_barrier()
        num_before = tl.atomic_add(counters_ptr + pair, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        if num_before == num_active - 1:
            joined_HD = _join_splits(
                partial_ptr, lse_ptr, num_active, GROUP, GROUP_PADDED, HEAD_DIM, acc_GD.shape[1],
                NUM_SPLITS, CHUNK,
            )  # fmt: skip
            h = tl.arange(0, GROUP_PADDED)
            mask_HD = (h < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
            tl.store(out_ptr + h[:, None] * HEAD_DIM + d[None, :], joined_HD.to(dtype), mask=mask_HD)
            tl.store(counters_ptr + pair, 0)
