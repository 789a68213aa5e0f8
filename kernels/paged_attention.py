"""The attention backend in plain PyTorch: the default on CPUs, the reference everywhere.

Decode rows run in tiles: some rows' blocks are gathered into one padded batch, small enough to stay
in the cache of a core between the gather and its use. A GQA group's heads ride along as query rows,
so K and V are never repeated. Prefill chunks run one by one. Knows nothing about models or requests.

Shapes: T packed tokens, B rows of a tile, L padded context, S block size, H heads, K KV heads,
G heads a KV head, D head dim, N blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.kv_slots import write_slots

if TYPE_CHECKING:
    from kernels.attention_backend import StepMetadata

MAX_TILE_TOKENS = 1024
"""Rows of a decode tile times their padded context; a longer row is a tile of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTile:
    """Neighbouring decode rows that are attended to as one batch."""

    rows: slice
    block_ids: torch.Tensor
    """The rows' blocks, one row after another, each padded to the same number."""
    bias_B11L: torch.Tensor | None
    """0 within a row's context, -inf past it; None where no row is padded."""
    stale_cells: torch.Tensor | None
    """Gathered cells past a row's context: they may hold another request's NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Consecutive tokens of one row, and the context they see."""

    tokens: slice
    block_ids: torch.Tensor
    context_len: int
    bias_TL: torch.Tensor | None
    """Causal by absolute position; None where the chunk is the whole context, or one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPlan:
    """What all layers of a step share."""

    slots_T: torch.Tensor
    kept_T: torch.Tensor | None
    """Indices of the tokens that have a slot; None where all have."""
    decode_tiles: tuple[DecodeTile, ...]
    prefill_chunks: tuple[PrefillChunk, ...]
    key_scratch_NSKD: torch.Tensor
    """Where blocks are gathered; reused by all tiles and layers, as fresh memory costs page faults."""
    value_scratch_NSKD: torch.Tensor


class TorchAttentionBackend:
    """Attention in plain PyTorch."""

    name = "torch"

    def plan(self, step: "StepMetadata") -> TorchPlan:
        """Cut the step into decode tiles and prefill chunks, with their masks and gather indices."""
        key_cache_NSKD = step.kv_caches[0][0]
        tiles = tuple(_decode_tiles(step, key_cache_NSKD))
        chunks = tuple(_prefill_chunks(step, key_cache_NSKD))
        num_blocks = max([len(tile.block_ids) for tile in tiles] + [len(chunk.block_ids) for chunk in chunks])
        scratch = key_cache_NSKD.new_empty(2, num_blocks, *key_cache_NSKD.shape[1:])
        slots_T = step.slot_mapping_T
        kept_T = None
        if (slots_T < 0).any():
            kept_T = (slots_T >= 0).nonzero().flatten()
            slots_T = slots_T[kept_T]
        return TorchPlan(
            slots_T=slots_T,
            kept_T=kept_T,
            decode_tiles=tiles,
            prefill_chunks=chunks,
            key_scratch_NSKD=scratch[0],
            value_scratch_NSKD=scratch[1],
        )

    def store(
        self,
        key_TKD: torch.Tensor,
        value_TKD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: TorchPlan,
    ) -> None:
        """Write each token's K and V into its slot; negative slots are skipped."""
        if plan.kept_T is not None:
            key_TKD, value_TKD = key_TKD[plan.kept_T], value_TKD[plan.kept_T]
        write_slots(key_TKD, key_cache_NSKD, plan.slots_T)
        write_slots(value_TKD, value_cache_NSKD, plan.slots_T)

    def attend(
        self,
        q_THD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: TorchPlan,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return out_THD: each token's causal attention over its row's context."""
        num_kv_heads = key_cache_NSKD.shape[2]
        out = torch.empty_like(q_THD, memory_format=torch.contiguous_format) if out is None else out
        q_TKGD, out_TKGD = q_THD.unflatten(1, (num_kv_heads, -1)), out.unflatten(1, (num_kv_heads, -1))
        for tile in plan.decode_tiles:
            key_NSKD, value_NSKD = _gather(key_cache_NSKD, value_cache_NSKD, tile.block_ids, plan)
            if tile.stale_cells is not None:
                key_NSKD.flatten(0, 1).index_fill_(0, tile.stale_cells, 0)
                value_NSKD.flatten(0, 1).index_fill_(0, tile.stale_cells, 0)
            out_TKGD[tile.rows] = _attend_tile(q_TKGD[tile.rows], key_NSKD, value_NSKD, tile)
        for chunk in plan.prefill_chunks:
            key_NSKD, value_NSKD = _gather(key_cache_NSKD, value_cache_NSKD, chunk.block_ids, plan)
            out_TKGD[chunk.tokens] = _attend_chunk(q_TKGD[chunk.tokens], key_NSKD, value_NSKD, chunk)
        return out


def _decode_tiles(step: "StepMetadata", cache_NSKD: torch.Tensor) -> Iterator[DecodeTile]:
    """Yield tiles that cover the decode rows in order."""
    block_size = cache_NSKD.shape[1]
    num_blocks = [-(-length // block_size) for length in step.context_lens[: step.num_decode_rows]]
    start = 0
    while start < len(num_blocks):
        end, widest = start + 1, num_blocks[start]
        while end < len(num_blocks):
            wider = max(widest, num_blocks[end])
            if (end + 1 - start) * wider * block_size > MAX_TILE_TOKENS:
                break
            end, widest = end + 1, wider
        yield _decode_tile(step, slice(start, end), widest, cache_NSKD)
        start = end


def _decode_tile(step: "StepMetadata", rows: slice, num_blocks: int, cache_NSKD: torch.Tensor) -> DecodeTile:
    block_size = cache_NSKD.shape[1]
    padded_len = num_blocks * block_size
    block_table_BM = step.block_table_BM[rows, :num_blocks]
    bias_B11L = stale_cells = None
    if min(step.context_lens[rows]) < padded_len:
        lengths_B1 = step.seq_lens_B[rows, None]
        is_stale_BL = torch.arange(padded_len, device=lengths_B1.device) >= lengths_B1
        # A row of fewer blocks reads whatever its table holds past them: any valid block will do.
        num_blocks_B1 = (lengths_B1 + block_size - 1) // block_size
        is_past_BM = torch.arange(num_blocks, device=lengths_B1.device) >= num_blocks_B1
        block_table_BM = block_table_BM.masked_fill(is_past_BM, 0)
        bias_BL = cache_NSKD.new_zeros(is_stale_BL.shape).masked_fill_(is_stale_BL, float("-inf"))
        bias_B11L = bias_BL[:, None, None, :]
        stale_cells = is_stale_BL.flatten().nonzero().flatten()
    return DecodeTile(
        rows=rows, block_ids=block_table_BM.flatten(), bias_B11L=bias_B11L, stale_cells=stale_cells
    )


def _prefill_chunks(step: "StepMetadata", cache_NSKD: torch.Tensor) -> Iterator[PrefillChunk]:
    """Yield one chunk for each row after the decode rows."""
    first_token = step.num_decode_rows
    for row in range(step.num_decode_rows, len(step.query_lens)):
        query_len, context_len = step.query_lens[row], step.context_lens[row]
        bias_TL = None
        if 1 < query_len < context_len:
            ones_TL = cache_NSKD.new_full((query_len, context_len), float("-inf"))
            bias_TL = ones_TL.triu_(context_len - query_len + 1)
        num_blocks = -(-context_len // cache_NSKD.shape[1])
        yield PrefillChunk(
            tokens=slice(first_token, first_token + query_len),
            block_ids=step.block_table_BM[row, :num_blocks],
            context_len=context_len,
            bias_TL=bias_TL,
        )
        first_token += query_len


def _gather(
    key_cache_NSKD: torch.Tensor, value_cache_NSKD: torch.Tensor, block_ids: torch.Tensor, plan: TorchPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy blocks into the plan's scratch, valid until the next gather."""
    key_NSKD = plan.key_scratch_NSKD[: len(block_ids)]
    value_NSKD = plan.value_scratch_NSKD[: len(block_ids)]
    torch.index_select(key_cache_NSKD, 0, block_ids, out=key_NSKD)
    torch.index_select(value_cache_NSKD, 0, block_ids, out=value_NSKD)
    return key_NSKD, value_NSKD


def _attend_tile(
    q_BKGD: torch.Tensor, key_NSKD: torch.Tensor, value_NSKD: torch.Tensor, tile: DecodeTile
) -> torch.Tensor:
    shape_BLKD = (len(q_BKGD), -1, *key_NSKD.shape[2:])
    key_BKLD = key_NSKD.view(shape_BLKD).transpose(1, 2)
    value_BKLD = value_NSKD.view(shape_BLKD).transpose(1, 2)
    return scaled_dot_product_attention(q_BKGD, key_BKLD, value_BKLD, attn_mask=tile.bias_B11L)


def _attend_chunk(
    q_TKGD: torch.Tensor, key_NSKD: torch.Tensor, value_NSKD: torch.Tensor, chunk: PrefillChunk
) -> torch.Tensor:
    q_GKTD = q_TKGD.permute(2, 1, 0, 3)
    num_groups = len(q_GKTD)
    # The group as a batch dimension of stride 0: all its heads read the same K and V.
    key_GKLD = key_NSKD.flatten(0, 1)[: chunk.context_len].transpose(0, 1).expand(num_groups, -1, -1, -1)
    value_GKLD = value_NSKD.flatten(0, 1)[: chunk.context_len].transpose(0, 1).expand(num_groups, -1, -1, -1)
    is_whole_context = len(q_TKGD) == chunk.context_len
    out_GKTD = scaled_dot_product_attention(
        q_GKTD, key_GKLD, value_GKLD, attn_mask=chunk.bias_TL, is_causal=is_whole_context
    )
    return out_GKTD.permute(2, 1, 0, 3)
