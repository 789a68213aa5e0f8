"""How a decode attention launch is cut into programs, and the memory its splits meet in.

Chosen on the host from what a captured graph fixes: rows and the longest context. Knows nothing
about what the kernel computes.

Shapes: X numbers in a flat buffer.
"""

from dataclasses import dataclass

import torch

TARGET_PROGRAMS = 512
"""About four programs on each of an H200's 132 multiprocessors: 32 rows of 640 tokens take 30 us with 2
splits, 33 with 4 (benchmarks/kernels/paged_decode.py --tune)."""
MAX_SPLITS = 16
"""More would cost the joining program more than they save the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """One launch's shape."""

    num_splits: int
    """Programs that share one row's context for one KV head; each gets whole tiles."""
    tile_size: int
    """Cells whose K and V are loaded at once: a power of two, at least 16."""
    num_warps: int
    num_stages: int
    min_split_tiles: int = 1
    """qkv_decode gives a row fewer splits where they would have fewer tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWorkspace:
    """Where splits leave their results. Launches in stream order may share one."""

    partial_X: torch.Tensor
    """float32; rows * splits * heads * head_dim numbers."""
    lse_X: torch.Tensor
    """float32; rows * splits * heads numbers."""
    counters_X: torch.Tensor
    """int32; rows * KV heads numbers, all 0 between launches: the last split puts its own back."""


def choose_decode_config(
    num_rows: int,
    max_context_len: int,
    *,
    num_kv_heads: int,
    block_size: int,
    bytes_per_cell: int,
) -> DecodeConfig:
    """Choose a launch's shape.

    Args:
        num_rows: rows of the batch, padding included.
        max_context_len: no row's context is longer.
        num_kv_heads: of this rank.
        block_size: tokens a block.
        bytes_per_cell: of one head's K, padded to a power of two: tiles of wide ones are smaller.
    """
    num_splits = 1
    while num_splits * num_rows * num_kv_heads < TARGET_PROGRAMS and num_splits < MAX_SPLITS:
        num_splits *= 2
    # A gather over small blocks gains from wider tiles where a program reads many of them.
    is_wide = block_size % 64 != 0 and num_splits == 1
    tile_size = 128 if is_wide else 64
    while tile_size > 16 and tile_size * bytes_per_cell > 2**15:
        tile_size //= 2
    while num_splits > 1 and (num_splits // 2) * tile_size >= max_context_len:
        num_splits //= 2
    return DecodeConfig(
        num_splits=num_splits, tile_size=tile_size, num_warps=4, num_stages=2 if num_splits <= 2 else 3
    )


def choose_qkv_decode_config(
    num_rows: int,
    max_context_len: int,
    *,
    num_kv_heads: int,
    block_size: int,
    bytes_per_cell: int,
) -> DecodeConfig:
    """Choose a launch's shape for qkv_decode; see choose_decode_config."""
    return choose_decode_config(
        num_rows,
        max_context_len,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        bytes_per_cell=bytes_per_cell,
    )


def make_decode_workspace(
    num_results: int, *, num_counters: int, head_dim: int, device: torch.device | str
) -> DecodeWorkspace:
    """Allocate a workspace.

    Args:
        num_results: the most rows * splits * heads of a launch.
        num_counters: the most rows * KV heads of a launch.
        head_dim: of the model.
        device: where it lies.
    """
    return DecodeWorkspace(
        partial_X=torch.empty(num_results * head_dim, dtype=torch.float32, device=device),
        lse_X=torch.empty(num_results, dtype=torch.float32, device=device),
        counters_X=torch.zeros(num_counters, dtype=torch.int32, device=device),
    )
