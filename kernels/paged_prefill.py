"""Attention of many new tokens a row over its paged context: checked launcher and reference.

Rows may compute any number of tokens, one too; each token sees its row's context up to itself, by
absolute position. Knows nothing about requests.

Shapes: T packed tokens, B rows, M blocks a table, N blocks, S block size, H heads, K KV heads, D head
dim, C cells of a row's context, G heads a KV head, Q new tokens of a row.
"""

from dataclasses import dataclass

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.paged_checks import check_index, check_out, check_paged_attention, gather_cells
from kernels.paged_prefill_kernel import paged_prefill_kernel

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """One launch's shape."""

    num_queries: int
    """Tokens times heads of the group that one program computes: a power of two, at least 16."""
    tile_size: int
    """Cells whose K and V are loaded at once: a power of two, at least 16."""
    num_warps: int
    num_stages: int
    has_descriptors: bool = False
    """Load whole tiles with the tensor memory accelerator: where blocks hold whole tiles."""


def choose_prefill_config(max_seqlen_q: int, *, cache_NSKD: torch.Tensor, group: int) -> PrefillConfig:
    """Choose a launch's shape.

    Args:
        max_seqlen_q: the most tokens that a row computes.
        cache_NSKD: for its shape and dtype.
        group: query heads a KV head.
    """
    bytes_per_cell = triton.next_power_of_2(cache_NSKD.shape[3]) * cache_NSKD.element_size()
    is_wide = bytes_per_cell > 256
    fewest = triton.next_power_of_2(max(16, group))
    num_queries = min(64 if is_wide else 128, triton.next_power_of_2(max_seqlen_q * group))
    # Tiles of 32 cells leave registers for three stages: on an H200, 64 prompts of 1,024 tokens take
    # 863 us a layer, with tiles of 64 and two stages 920 to 1,200 (benchmarks/kernels/paged_prefill.py).
    tile_size = 32
    while tile_size > 16 and tile_size * bytes_per_cell > 2**15:
        tile_size //= 2
    return PrefillConfig(num_queries=max(num_queries, fewest), tile_size=tile_size, num_warps=4, num_stages=3)


def paged_prefill(
    q_THD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_BM: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens_B: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    *,
    out: torch.Tensor | None = None,
    config: PrefillConfig | None = None,
) -> torch.Tensor:
    """Return out_THD: each token's causal attention over its row's context.

    Args:
        q_THD: contiguous in its heads and dims; in the cache's dtype.
        key_cache_NSKD: contiguous; holds the new tokens' K already.
        value_cache_NSKD: like key_cache_NSKD.
        block_table_BM: int32; each row's block ids in order; columns past its context are never read.
        cu_seqlens_q: (B + 1,) int32; where in q_THD each row's tokens begin. Tokens of no row are
            neither read nor written.
        seq_lens_B: int32; each row's context length, its new tokens included.
        max_seqlen_q: no row computes more tokens.
        scale: of the scores.
        out: contiguous, like q_THD; new where None.
        config: chosen by shape where None.

    Raises:
        ValueError: shapes or dtypes do not fit each other.
    Source: FlashAttention-2 (Dao, 2023).
    """
    check_paged_attention(q_THD, key_cache_NSKD, value_cache_NSKD, block_table_BM)
    check_index("seq_lens", seq_lens_B, len(block_table_BM))
    check_index("cu_seqlens_q", cu_seqlens_q, len(block_table_BM) + 1)
    group = q_THD.shape[1] // key_cache_NSKD.shape[2]
    config = config or choose_prefill_config(max_seqlen_q, cache_NSKD=key_cache_NSKD, group=group)
    out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
    check_out(out, q_THD)
    if config.num_queries < group:
        raise ValueError(f"tiles of {config.num_queries} queries do not hold a group of {group} heads")
    num_tiles = -(-max_seqlen_q // (config.num_queries // group))
    if num_tiles and len(block_table_BM):
        tensors = (block_table_BM, cu_seqlens_q, seq_lens_B, out)
        _launch(q_THD, (key_cache_NSKD, value_cache_NSKD), tensors, num_tiles, scale, config)
    return out


def _launch(q_THD, caches, tensors, num_tiles: int, scale: float, config: PrefillConfig) -> None:
    block_size, num_kv_heads, head_dim = caches[0].shape[1:]
    dim_padded = max(16, triton.next_power_of_2(head_dim))
    has_descriptors = config.has_descriptors and block_size % config.tile_size == 0 and dim_padded == head_dim
    paged_prefill_kernel[(num_kv_heads, num_tiles, len(tensors[0]))](
        q_THD,
        *caches,
        *(_descriptor(cache, config.tile_size) if has_descriptors else cache for cache in caches),
        *tensors,
        scale * LOG2_E,
        q_THD.stride(0),
        tensors[0].stride(0),
        BLOCK_SIZE=block_size,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=q_THD.shape[1] // num_kv_heads,
        HEAD_DIM=head_dim,
        DIM_PADDED=dim_padded,
        NUM_QUERIES=config.num_queries,
        TILE=config.tile_size,
        NUM_STAGES=config.num_stages,
        HAS_DESCRIPTORS=has_descriptors,
        num_warps=config.num_warps,
    )


def _descriptor(cache_NSKD: torch.Tensor, tile_size: int) -> TensorDescriptor:
    """Describe the cache as cells of all heads, loaded a tile of cells of one head at a time."""
    num_blocks, block_size, num_kv_heads, head_dim = cache_NSKD.shape
    cells = cache_NSKD.view(num_blocks * block_size, num_kv_heads * head_dim)
    return TensorDescriptor.from_tensor(cells, [tile_size, head_dim])


def paged_prefill_ref(
    q_THD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_BM: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens_B: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return out_THD in plain PyTorch, a loop over rows in float32; see paged_prefill."""
    out_THD = torch.empty_like(q_THD)
    bounds = cu_seqlens_q.tolist()
    for row, seq_len in enumerate(seq_lens_B.tolist()):
        tokens = slice(bounds[row], bounds[row + 1])
        key_CKD = gather_cells(key_cache_NSKD, block_table_BM[row], seq_len).float()
        value_CKD = gather_cells(value_cache_NSKD, block_table_BM[row], seq_len).float()
        q_QKGD = q_THD[tokens].float().unflatten(1, (key_CKD.shape[1], -1))
        score_KGQC = torch.einsum("qkgd,ckd->kgqc", q_QKGD, key_CKD) * scale
        is_later_QC = score_KGQC.new_ones(score_KGQC.shape[2:]).triu(seq_len - len(q_QKGD) + 1).bool()
        weight_KGQC = score_KGQC.masked_fill(is_later_QC, float("-inf")).softmax(-1)
        out_THD[tokens] = torch.einsum("kgqc,ckd->qkgd", weight_KGQC, value_CKD).flatten(1, 2).to(q_THD.dtype)
    return out_THD
