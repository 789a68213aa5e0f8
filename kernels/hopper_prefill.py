"""Launches attention of new prompts alone on a Hopper GPU. Knows nothing about caches or requests.

Shapes: T packed tokens, H heads, K KV heads, D head dim, I tiles.
"""

import torch

from kernels.dependent_launch import can_depend, launch_options
from kernels.gluon_kernels import describe_tiles, hopper_prefill_kernel
from kernels.gpu import num_multiprocessors
from kernels.prefill_tiles import PrefillConfig, tokens_per_tile
from kernels.work_counters import work_counters

HEADS_AT_ONCE = 2
NUM_WARPS = 4
"""Of each head; those that fetch are added by the compiler."""


def hopper_prefill(
    q_THD: torch.Tensor,
    key_TX: torch.Tensor,
    value_TX: torch.Tensor,
    tiles_I4: torch.Tensor,
    scale_log2: float,
    *,
    config: PrefillConfig,
    out: torch.Tensor,
    is_beside: bool = False,
) -> None:
    """Write out_THD: each token's causal attention over its own prompt. Starts while the kernel before runs.

    Of values that are not finite, those of a prompt behind it, too: tiles are copied whole, and in the last
    one 0 times NaN is NaN. Up to 128 last tokens of a prompt are then NaN. The other kernels mask such rows.

    Args:
        q_THD: contiguous in its heads and dims.
        key_TX: (T, K * D); rows may be strided by multiples of 16 bytes.
        value_TX: like key_TX.
        tiles_I4: from prefill_tiles; padding comes last.
        scale_log2: of the scores, times log2(e).
        config: that the tiles were cut for.
        out: contiguous, like q_THD.
        is_beside: as paged_prefill's.
    """
    _, num_heads, head_dim = q_THD.shape
    group = num_heads * head_dim // key_TX.shape[1]
    tile_size = config.fresh_tile_size
    num_works = len(tiles_I4) * num_heads // HEADS_AT_ONCE
    hopper_prefill_kernel[(min(num_works, num_multiprocessors(q_THD.device)),)](
        describe_tiles(q_THD.flatten(1), tokens_per_tile(config, group), head_dim),
        describe_tiles(key_TX, tile_size, head_dim),
        describe_tiles(value_TX, tile_size, head_dim),
        tiles_I4,
        work_counters("hopper_prefill", q_THD.device),
        describe_tiles(out.flatten(1), tokens_per_tile(config, group), head_dim),
        out,
        scale_log2,
        num_works,
        NUM_HEADS=num_heads,
        GROUP=group,
        NUM_STAGES=config.num_stages,
        IS_BESIDE=is_beside,
        num_warps=NUM_WARPS,
        **launch_options(can_depend(q_THD.device)),
    )
