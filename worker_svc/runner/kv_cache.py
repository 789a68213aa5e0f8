"""Allocates the paged KV cache.

Knows nothing about who holds which block. Legend: N blocks, S block size, K KV heads, D head dim.
"""

import torch

from model.config import ModelConfig
from model.forward_context import KvCache
from worker_svc.errors import MemoryBudgetError


def allocate_kv_caches(
    model: ModelConfig, num_blocks: int, *, block_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[KvCache, ...]:
    """Allocate the K and V cells of every layer.

    Args:
        model: Shapes of the model, or of what this rank holds of it.
        num_blocks: Blocks that requests can hold; block 0, for padding, comes on top.
        block_size: Tokens of a block.
        dtype: Of the cells.
        device: Where they lie.

    Returns:
        One (key_cache_NSKD, value_cache_NSKD) a layer, not initialized: nothing reads a cell that
        was not written, and a CPU commits its pages only then.

    Raises:
        MemoryBudgetError: if the device has not as much memory.
    """
    shape_NSKD = (num_blocks + 1, block_size, model.num_kv_heads, model.head_dim)
    try:
        return tuple(
            (
                torch.empty(shape_NSKD, dtype=dtype, device=device),
                torch.empty(shape_NSKD, dtype=dtype, device=device),
            )
            for _ in range(model.num_layers)
        )
    except RuntimeError as error:
        raise MemoryBudgetError(
            f"no memory for a KV cache of {num_blocks + 1} blocks on {device}: "
            f"lower --kv-cache-gib or --num-blocks, or --gpu-memory-utilization ({error})"
        ) from error
