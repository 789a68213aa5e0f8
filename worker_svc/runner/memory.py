"""How many KV blocks there are, and how long a request may get.

Arithmetic on sizes that are given. Knows nothing about how memory is allocated or measured.
"""

from dataclasses import dataclass

from model.config import ModelConfig
from worker_svc.errors import ConfigError, MemoryBudgetError

GIB = 1024**3
_MOST_CHOSEN_BLOCKS = 2**20
"""No engine takes more, where a model is so small that they would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What was measured once weights and work space lay on the device and the largest steps had run."""

    total_bytes: int
    used_bytes: int
    """By this process and all others."""
    transient_bytes: int
    """What the largest step took on top, and gave back."""


def kv_bytes_per_block(model: ModelConfig, *, block_size: int, itemsize_bytes: int) -> int:
    """Bytes of K and V of one block over all layers."""
    return 2 * model.num_layers * block_size * model.num_kv_heads * model.head_dim * itemsize_bytes


def choose_num_blocks_of_device(
    memory: DeviceMemory, *, gpu_memory_utilization: float, reserved_bytes: int, bytes_per_block: int
) -> int:
    """Choose how many blocks requests can hold in what is left of a device.

    Args:
        memory: What was measured.
        gpu_memory_utilization: Share of the whole device that may be used in all.
        reserved_bytes: What is to be allocated later.
        bytes_per_block: K and V of one block.

    Raises:
        MemoryBudgetError: if that is none.
    """
    taken_bytes = memory.used_bytes + memory.transient_bytes + reserved_bytes
    left_bytes = int(gpu_memory_utilization * memory.total_bytes) - taken_bytes
    num_fitting = left_bytes // bytes_per_block - 1
    if num_fitting < 1:
        raise MemoryBudgetError(
            f"--gpu-memory-utilization {gpu_memory_utilization} of {memory.total_bytes / GIB:.2f} GiB leaves "
            f"{left_bytes / GIB:.2f} GiB for the KV cache after {taken_bytes / GIB:.2f} GiB for weights and "
            f"steps, but must leave {2 * bytes_per_block / GIB:.6f}: raise it, or lower "
            "--max-num-batched-tokens or --max-num-seqs"
        )
    return min(num_fitting, _MOST_CHOSEN_BLOCKS)


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
    return min(num_fitting, _MOST_CHOSEN_BLOCKS)


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
            f"({num_blocks} blocks of {block_size}): raise --kv-cache-gib, --num-blocks or "
            "--gpu-memory-utilization, or lower --max-model-len"
        )
    return flag
