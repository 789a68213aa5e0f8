"""What attention must know of one step, passed to the model as an argument.

Knows nothing about requests, lanes or who made the step. Rows are the step's sequences in order;
rows [0, num_decode_rows) compute one token each, the others are prefill chunks.

Shapes: T packed tokens, B rows, M blocks a table, N blocks in the pool, S block size, K KV heads,
D head dim.
"""

from dataclasses import dataclass

import torch

from kernels.attention_backend import AttentionBackend

KvCache = tuple[torch.Tensor, torch.Tensor]
"""One layer's (key_cache_NSKD, value_cache_NSKD)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """Attention metadata of one step. Tensors lie on the model's device."""

    slot_mapping_T: torch.Tensor
    """int64: each token's cell in the KV cache; a negative slot is skipped."""
    cu_seqlens_q: torch.Tensor
    """(B + 1,) int32: running sum of query lengths from 0."""
    seq_lens_B: torch.Tensor
    """int32: each row's context length after this step."""
    block_table_BM: torch.Tensor
    """int32: each row's block ids in order; columns past its context are never read."""
    query_lens: tuple[int, ...]
    """Tokens each row computes: the host's view of cu_seqlens_q."""
    context_lens: tuple[int, ...]
    """The host's copy of seq_lens_B."""
    num_decode_rows: int
    kv_caches: tuple[KvCache, ...]
    """One a layer. Cells past a row's context may hold anything, even NaN."""
    backend: AttentionBackend
