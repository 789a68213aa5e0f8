"""How many KV blocks there are, and how long a request may get.

Arithmetic on sizes that are given. Knows nothing about how memory is allocated or measured.
"""

from model.config import ModelConfig
from worker_svc.errors import ConfigError, MemoryBudgetError

GIB = 1024**3


def kv_bytes_per_block(model: ModelConfig, *, block_size: int, itemsize_bytes: int) -> int:
    """Bytes of K and V of one block over all layers."""
    return 2 * model.num_layers * block_size * model.num_kv_heads * model.head_dim * itemsize_bytes


def choose_num_blocks(*, num_blocks: int, kv_cache_gib: float, bytes_per_block: int) -> int:
    """Choose how many blocks requests can hold: as given, or as many as fit with the padding block.

    Raises:
        MemoryBudgetError: if that is none.
    """
    if num_blocks > 0:
        return num_blocks
    num_fitting = int(kv_cache_gib * GIB) // bytes_per_block - 1
    if num_fitting < 1:
        raise MemoryBudgetError(
            f"--kv-cache-gib is {kv_cache_gib}, but must hold two blocks of {bytes_per_block} bytes: "
            f"give at least {2 * bytes_per_block / GIB:.6f}, or lower --block-size"
        )
    return num_fitting


def choose_max_model_len(flag: int, *, max_position_embeddings: int, num_blocks: int, block_size: int) -> int:
    """Choose the most tokens of one request: as given, or the model's, lowered to what the blocks hold.

    Raises:
        ConfigError: if the flag asks for more than the model can.
        MemoryBudgetError: if it asks for more than the KV cache holds.
    """
    num_kv_tokens = num_blocks * block_size
    if flag == 0:
        return min(max_position_embeddings, num_kv_tokens)
    if flag > max_position_embeddings:
        raise ConfigError(
            f"--max-model-len is {flag}, but must be at most {max_position_embeddings}, "
            "the model's max_position_embeddings"
        )
    if flag > num_kv_tokens:
        raise MemoryBudgetError(
            f"--max-model-len is {flag}, but the KV cache holds {num_kv_tokens} tokens "
            f"({num_blocks} blocks of {block_size}): raise --kv-cache-gib or --num-blocks, "
            "or lower --max-model-len"
        )
    return flag
