"""Attention of many new tokens a row over its paged context: checked launcher and reference.

Rows may compute any number of tokens, one too; each token sees its row's context up to itself, by
absolute position. Knows nothing about requests.

Shapes: T packed tokens, L lanes, R rows, I tiles, M blocks a table, N blocks, S block size, H heads,
K KV heads, D head dim, C cells of a row's context, G heads a KV head, Q new tokens of a row.
"""

from dataclasses import dataclass

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.dependent_launch import can_depend, launch_options
from kernels.fresh_prefill_kernel import fresh_prefill_kernel
from kernels.hopper_prefill import hopper_prefill
from kernels.paged_checks import check_index, check_out, check_paged_attention, gather_cells
from kernels.paged_prefill_kernel import paged_prefill_kernel
from kernels.prefill_tiles import (
    PrefillTiles,
    choose_prefill_config,
    make_prefill_tiles,
    tokens_per_tile,
)

LOG2_E = 1.4426950408889634
MOST_PROGRAMS = 2048
"""More tiles, times KV heads, are shared by so many. A captured step has room for more rows than most have:
with 1,024 lanes for 10,000 programs. 6,144 that find nothing to do take an H200 9.1 us, 1,024 take 2.7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRows:
    """New tokens as the projection left them, keys normalized and rotated since."""

    key_TX: torch.Tensor
    """(T, K * D); rows may be strided by multiples of 16 bytes."""
    value_TX: torch.Tensor
    """Like key_TX."""


def paged_prefill(
    q_THD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_R: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens_R: torch.Tensor,
    scale: float,
    *,
    tiles: PrefillTiles | None = None,
    fresh: FreshRows | None = None,
    out: torch.Tensor | None = None,
    is_beside: bool = False,
) -> torch.Tensor:
    """Return out_THD: each token's causal attention over its row's context.

    Args:
        q_THD: contiguous in its heads and dims; in the cache's dtype.
        key_cache_NSKD: contiguous; holds the new tokens' K already.
        value_cache_NSKD: like key_cache_NSKD.
        block_table_LM: int32; a lane's block ids in order; columns past its context are never read.
        lanes_R: int32; each row's row of the table.
        cu_seqlens_q: (R + 1,) int32; where in q_THD each row's tokens begin; others are left alone.
        seq_lens_R: int32; each row's context length, its new tokens included.
        scale: of the scores.
        tiles: what the programs compute. Made anew where None, which waits for the device.
        fresh: where the new tokens' K and V are read instead of in the cache. See can_read_fresh.
        out: contiguous, like q_THD; new where None.
        is_beside: start before the launch in front ends, which has waited for all that this one reads.

    Raises:
        ValueError: shapes or dtypes do not fit.
    Source: FlashAttention-2 (Dao, 2023).
    """
    check_paged_attention(q_THD, key_cache_NSKD, value_cache_NSKD, block_table_LM)
    check_index("lanes", lanes_R, len(lanes_R))
    check_index("seq_lens", seq_lens_R, len(lanes_R))
    check_index("cu_seqlens_q", cu_seqlens_q, len(lanes_R) + 1)
    group = q_THD.shape[1] // key_cache_NSKD.shape[2]
    if tiles is None:
        tiles = _cut_rows(cu_seqlens_q, seq_lens_R, cache_NSKD=key_cache_NSKD, group=group)
    tokens_per_tile(tiles.config, group)
    out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
    check_out(out, q_THD)
    if len(tiles.tiles_I4):
        tensors, rows = (q_THD, key_cache_NSKD, value_cache_NSKD), (block_table_LM, lanes_R, seq_lens_R)
        _launch(tensors, (*rows, tiles.tiles_I4, out), scale, tiles=tiles, fresh=fresh, is_beside=is_beside)
    return out


def _cut_rows(
    cu_seqlens_q: torch.Tensor, seq_lens_R: torch.Tensor, *, cache_NSKD: torch.Tensor, group: int
) -> PrefillTiles:
    longest = int(cu_seqlens_q.diff().max()) if len(seq_lens_R) else 0
    config = choose_prefill_config(max(longest, 1), cache_NSKD=cache_NSKD, group=group)
    return make_prefill_tiles(cu_seqlens_q, seq_lens_R, config=config, group=group)


def can_read_fresh(qkv_TX: torch.Tensor, head_dim: int) -> bool:
    """Whether the tensor memory accelerator can read heads out of such rows: all starts at 16 bytes."""
    head_bytes, row_bytes = head_dim * qkv_TX.itemsize, qkv_TX.stride(0) * qkv_TX.itemsize
    return head_bytes % 16 == 0 and row_bytes % 16 == 0 and qkv_TX.data_ptr() % 16 == 0


def _launch(
    tensors, rows, scale: float, *, tiles: PrefillTiles, fresh: FreshRows | None, is_beside: bool
) -> None:
    (q_THD, key_cache_NSKD, _), config = tensors, tiles.config
    if config.is_hopper and fresh is not None and not tiles.has_old:
        fresh_rows = (fresh.key_TX, fresh.value_TX)
        hopper_prefill(
            *(q_THD, *fresh_rows, tiles.tiles_I4, scale * LOG2_E),
            config=config,
            out=rows[-1],
            is_beside=is_beside,
        )
        return
    block_size, num_kv_heads, head_dim = key_cache_NSKD.shape[1:]
    dim_padded = max(16, triton.next_power_of_2(head_dim))
    keys, values = None, None
    if fresh is not None:
        tile = [config.fresh_tile_size, dim_padded]
        keys, values = (TensorDescriptor.from_tensor(side, tile) for side in (fresh.key_TX, fresh.value_TX))
    constants = {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": q_THD.shape[1] // num_kv_heads,
        "HEAD_DIM": head_dim,
        "DIM_PADDED": dim_padded,
        "NUM_QUERIES": config.num_queries,
        "FRESH_TILE": config.fresh_tile_size,
        "NUM_STAGES": config.num_stages,
        "num_warps": config.num_warps,
    }
    scale_log2, (*_, tiles_I4, out), num_tiles = scale * LOG2_E, rows, len(tiles.tiles_I4)
    grid = (num_kv_heads, min(num_tiles, max(1, MOST_PROGRAMS // num_kv_heads)))
    if fresh is not None and not tiles.has_old:
        fresh_prefill_kernel[grid](
            q_THD, keys, values, tiles_I4, out, scale_log2, q_THD.stride(0), num_tiles, **constants
        )
        return
    paged_prefill_kernel[grid](
        *(*tensors, keys, values, *rows),
        scale_log2,
        q_THD.stride(0),
        rows[0].stride(0),
        num_tiles,
        BLOCK_SIZE=block_size,
        TILE=config.tile_size,
        IS_EARLY=can_depend(q_THD.device),
        **constants,
        **launch_options(is_beside and can_depend(q_THD.device)),
    )


def paged_prefill_ref(
    q_THD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_R: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens_R: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return out_THD in plain PyTorch, a loop over rows in float32; see paged_prefill."""
    out_THD = torch.empty_like(q_THD)
    bounds = cu_seqlens_q.tolist()
    for row, (lane, seq_len) in enumerate(zip(lanes_R.tolist(), seq_lens_R.tolist(), strict=True)):
        tokens = slice(bounds[row], bounds[row + 1])
        key_CKD = gather_cells(key_cache_NSKD, block_table_LM[lane], seq_len).float()
        value_CKD = gather_cells(value_cache_NSKD, block_table_LM[lane], seq_len).float()
        q_QKGD = q_THD[tokens].float().unflatten(1, (key_CKD.shape[1], -1))
        score_KGQC = torch.einsum("qkgd,ckd->kgqc", q_QKGD, key_CKD) * scale
        is_later_QC = score_KGQC.new_ones(score_KGQC.shape[2:]).triu(seq_len - len(q_QKGD) + 1).bool()
        weight_KGQC = score_KGQC.masked_fill(is_later_QC, float("-inf")).softmax(-1)
        out_THD[tokens] = torch.einsum("kgqc,ckd->qkgd", weight_KGQC, value_CKD).flatten(1, 2).to(q_THD.dtype)
    return out_THD
