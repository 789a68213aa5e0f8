"""How a decode attention launch is cut into programs, and the memory its splits meet in.

Chosen on the host from what a captured graph fixes: rows and the longest context. Knows nothing
about what the kernel computes.

Shapes: X numbers in a flat buffer.
"""

from dataclasses import dataclass, replace

import torch

from kernels.gpu import most_stages

MIN_TILE_SIZE = 16
MIN_QUERIES = 16
"""That a tile is multiplied with, padding included."""
TARGET_PROGRAMS = 512
"""About four programs on each of an H200's 132 multiprocessors: 32 rows of 640 tokens take 30 us with 2
splits, 33 with 4 (benchmarks/kernels/paged_decode.py --tune)."""
MIN_WHOLE_PAIRS = 385
"""Rows times KV heads from which on no row is split where programs of long rows start first: in us of a
layer, 56 rows of nano256's lengths take 102.2 in halves and 95.7 whole, 40 rows 78.4 and 80.8, of 500 to
4,000 tokens 105.7 and 124.7. Rows that suit hopper_decode are whole from MAX_FUSED_PAIRS on."""
MAX_SPLITS = 16
"""More would cost the joining program more than they save the others."""
MAX_FUSED_PAIRS = 256
"""Most rows times KV heads for which qkv_decode beats qk_norm_rope_store and paged_decode. In us within a
layer of Qwen3-0.6B, 128 to 640 tokens a row, on an H200: 10.4 to 14.0 at 8 rows, 20.5 to 23.1 at 32; at 128
rows 91 to 86, as each of many programs makes its heads ready before it can attend."""
MAX_TILE_BYTES = 2**14
"""Of K: three of K and V on their way at once fit a multiprocessor twice. Tiles of 32 KB in float32 take more
registers than a thread has."""


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


def _config(
    num_splits: int, tile_size: int, num_warps: int, num_stages: int, least_cells: int
) -> DecodeConfig:
    return DecodeConfig(
        num_splits=num_splits,
        tile_size=tile_size,
        num_warps=num_warps,
        num_stages=num_stages,
        min_split_tiles=least_cells // tile_size,
    )


_QKV_CONFIGS = (
    (8, _config(32, 32, 4, 3, 32)),
    (32, _config(8, 32, 4, 3, 64)),
    (64, _config(4, 32, 4, 3, 128)),
    (128, _config(2, 64, 8, 3, 128)),
    (192, _config(2, 32, 4, 3, 192)),
    (256, _config(1, 64, 8, 3, 64)),
)
"""By the most rows times KV heads: splits, tile size, warps, stages, and the least cells of a split. Splits
that a row does without cost time, too, as their programs must start to see it: 8 rows of 384 tokens, three
splits of 128 cells each, take 22.1 us a layer where there may be 4, and 23.6 where there may be 8 (H200)."""
_QKV_CONFIG_MANY = _config(1, 16, 1, 4, 16)
_TILE_SIZE, _NUM_WARPS, _NUM_STAGES = 64, 4, 3
"""Of paged_decode: a multiprocessor of an H200 holds three such programs. Of rows that hopper_decode does not
take, some numbers of them would be 1 to 3 % faster by others there, and few long ones up to a seventh."""


def choose_decode_config(
    num_rows: int,
    max_context_len: int,
    *,
    num_kv_heads: int,
    bytes_per_cell: int,
    is_ordered: bool = False,
) -> DecodeConfig:
    """Choose a launch's shape.

    Args:
        num_rows: rows of the batch, padding included.
        max_context_len: no row's context is longer.
        num_kv_heads: of this rank.
        bytes_per_cell: of one head's K, padded to a power of two: tiles of wide ones are smaller.
        is_ordered: whether programs of long rows start first.
    """
    num_pairs, num_splits = num_rows * num_kv_heads, 1
    target = MIN_WHOLE_PAIRS if is_ordered and num_pairs > MAX_FUSED_PAIRS else TARGET_PROGRAMS
    while num_splits * num_pairs < target and num_splits < MAX_SPLITS:
        num_splits *= 2
    tile_size = _TILE_SIZE
    while tile_size > MIN_TILE_SIZE and tile_size * bytes_per_cell > MAX_TILE_BYTES:
        tile_size //= 2
    while num_splits > 1 and (num_splits // 2) * tile_size >= max_context_len:
        num_splits //= 2
    return DecodeConfig(
        num_splits=num_splits, tile_size=tile_size, num_warps=_NUM_WARPS, num_stages=_NUM_STAGES
    )


def choose_qkv_decode_config(
    num_rows: int,
    max_context_len: int,
    *,
    num_kv_heads: int,
    bytes_per_cell: int,
) -> DecodeConfig:
    """Choose a launch's shape for qkv_decode; see choose_decode_config.

    What measured best on an H200 at Qwen3-0.6B's heads over rows of 128 to 640 tokens, and of 3,000 and more
    where there are few (benchmarks/kernels/qkv_decode.py --tune).
    """
    num_pairs = num_rows * num_kv_heads
    config = next(
        (config for most_pairs, config in _QKV_CONFIGS if num_pairs <= most_pairs), _QKV_CONFIG_MANY
    )
    num_splits, tile_size, min_split_tiles = config.num_splits, config.tile_size, config.min_split_tiles
    while tile_size > MIN_TILE_SIZE and tile_size * bytes_per_cell > MAX_TILE_BYTES:
        tile_size, min_split_tiles = tile_size // 2, 2 * min_split_tiles
    while num_splits > 1 and (num_splits // 2) * tile_size * min_split_tiles >= max_context_len:
        num_splits //= 2
    return replace(config, num_splits=num_splits, tile_size=tile_size, min_split_tiles=min_split_tiles)


def fit_stages(config: DecodeConfig, device: torch.device, *, bytes_per_cell: int) -> DecodeConfig:
    """Return the config with no more stages than a program on this device has room for."""
    stages = most_stages(
        device,
        stage_bytes=2 * config.tile_size * bytes_per_cell,  # K and V
        other_bytes=MIN_QUERIES * bytes_per_cell,
    )
    return replace(config, num_stages=min(config.num_stages, stages))


def fuses_decode(num_rows: int, num_kv_heads: int) -> bool:
    """Whether qkv_decode is the faster way for so many decode rows."""
    return num_rows * num_kv_heads <= MAX_FUSED_PAIRS


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
