"""Cuts prefill rows into tiles of tokens: which programs of a launch compute what.

A list of tiles instead of a grid of rows, so that a captured launch of a fixed number of programs serves
any rows, and heavy tiles start first. Needs no Triton; knows nothing about what a tile computes.

Legend: R rows, I tiles, padding included; N blocks, S block size, K KV heads, D head dim.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.gpu import most_stages

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

PADDING_ROW = -1
HOPPER_TOKENS = 64
"""Of a row that hopper_prefill computes at once, for two heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """One launch's shape."""

    num_queries: int
    """Tokens times heads of the group that one program computes: a power of two, at least 16."""
    tile_size: int
    """Cells whose K and V are loaded at once: a power of two, at least 16."""
    fresh_tile_size: int
    """The same of new tokens that are read where the projection left them."""
    num_warps: int
    num_stages: int
    is_hopper: bool = False
    """Whether hopper_prefill computes the rows, which have no cells from before this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTiles:
    """Which tile of which row each program of a launch computes: all rows, or some."""

    tiles_I4: torch.Tensor
    """int32, from prefill_tiles. A captured launch reads it at each replay."""
    config: PrefillConfig
    """Whose tiles they are."""
    has_old: bool = True
    """Whether its rows may have cells from before this step."""


def make_prefill_tiles(
    cu_seqlens_q: torch.Tensor, seq_lens_R: torch.Tensor, *, config: PrefillConfig, group: int
) -> PrefillTiles:
    """Cut rows into tiles; waits for the device, so that a runner makes its own beforehand.

    Args:
        cu_seqlens_q: as paged_prefill's.
        seq_lens_R: as paged_prefill's.
        config: the launch's.
        group: query heads a KV head.
    """
    bounds, seq_lens = cu_seqlens_q.cpu().numpy(), seq_lens_R.cpu().numpy()
    tiles = prefill_tiles(bounds, seq_lens, tokens_per_tile=tokens_per_tile(config, group))
    return PrefillTiles(
        tiles_I4=torch.from_numpy(tiles).to(cu_seqlens_q.device),
        config=config,
        has_old=bool((seq_lens != np.diff(bounds)).any()),
    )


def tokens_per_tile(config: PrefillConfig, group: int) -> int:
    """Tell how many of a row's tokens one program computes.

    Raises:
        ValueError: not one.
    """
    if config.num_queries < group:
        raise ValueError(f"tiles of {config.num_queries} queries do not hold a group of {group} heads")
    return config.num_queries // group


def choose_prefill_config(
    max_seqlen_q: int, *, cache_NSKD: torch.Tensor, group: int, are_new: bool = False
) -> PrefillConfig:
    """Choose a launch's shape.

    Args:
        max_seqlen_q: the most tokens that a row computes.
        cache_NSKD: for its device, shape and dtype.
        group: query heads a KV head.
        are_new: whether no row of the launch has cells from before this step.
    """
    if are_new and max_seqlen_q >= HOPPER_TOKENS and can_use_hopper(cache_NSKD, group):
        # On an H200, 16 prompts of 1,024 tokens take 135 us a layer so, not 191, one of 4,000 108, not 137.
        return PrefillConfig(
            num_queries=HOPPER_TOKENS * group,
            tile_size=64,
            fresh_tile_size=128,
            num_warps=4,
            num_stages=2,
            is_hopper=True,
        )
    bytes_per_cell = next_power_of_2(cache_NSKD.shape[3]) * cache_NSKD.element_size()
    is_wide = bytes_per_cell > 256
    fewest = next_power_of_2(max(16, group))
    num_queries = max(min(64, next_power_of_2(max_seqlen_q * group)), fewest)
    # Of small tiles more fit a multiprocessor: on an H200, 16 prompts of 1,024 tokens take 200 us a layer so,
    # with 128 queries and 32 cells 240 (benchmarks/kernels/paged_prefill.py).
    tile_size = 32 if is_wide else 64
    while tile_size > 16 and tile_size * bytes_per_cell > 2**15:
        tile_size //= 2
    stages = most_stages(
        cache_NSKD.device,
        stage_bytes=2 * tile_size * bytes_per_cell,  # K and V
        other_bytes=num_queries * bytes_per_cell,
    )
    return PrefillConfig(
        num_queries=num_queries,
        tile_size=tile_size,
        fresh_tile_size=tile_size,
        num_warps=4,
        num_stages=min(3, stages),
    )


def can_use_hopper(cache_NSKD: torch.Tensor, group: int) -> bool:
    """Whether hopper_prefill can compute such heads on this device."""
    is_half = cache_NSKD.dtype in (torch.bfloat16, torch.float16)
    fits = is_half and cache_NSKD.shape[3] in (64, 128) and group % 2 == 0
    if not (fits and cache_NSKD.is_cuda):
        return False
    # Not on a CPU: it imports Triton.
    from kernels.gluon_kernels import runs_gluon  # noqa: PLC0415

    return runs_gluon(cache_NSKD.device)


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is not less; number is at least 1."""
    return 1 << (number - 1).bit_length()


def prefill_tiles(
    bounds: Int32Array,
    seq_lens: Int32Array,
    *,
    tokens_per_tile: int,
    rows: Int64Array | None = None,
    num_tiles: int | None = None,
) -> Int32Array:
    """Return (I, 4): each tile's row, its first token, where the row's new tokens begin, how many they are.

    The first token is counted from the row's first new one. A program asks for all four at once.
    Rows with the longest context come first, and of a row its last tile: the last to start are then
    short, and a row's tiles run together and find its K and V in the L2 cache.

    Args:
        bounds: (R + 1,): where each row's new tokens begin among all, and where the last one's end.
        seq_lens: (R,): context length of each row, its new tokens included.
        tokens_per_tile: of one program, at least 1.
        rows: that are cut, ascending; None: all.
        num_tiles: I: what is over is padding, of row -1 and without tokens. None: as many as there are.
    """
    query_lens = bounds[1:] - bounds[:-1]
    rows = np.arange(len(seq_lens)) if rows is None else rows
    longest_first = rows[(-seq_lens[rows]).argsort(kind="stable")]
    num_each = -(-query_lens[longest_first] // tokens_per_tile)
    num_real = int(num_each.sum())
    num_tiles = num_real if num_tiles is None else num_tiles
    assert num_real <= num_tiles, f"{num_real} tiles, but the launch has {num_tiles}"
    row = longest_first.repeat(num_each)
    num_after = num_each.cumsum().repeat(num_each) - np.arange(1, num_real + 1)
    # Of a row its last tile comes first: so many tiles stand before it in the row.
    tiles = np.zeros((num_tiles, 4), np.int32)
    tiles[:num_real, 0] = row
    tiles[num_real:, 0] = PADDING_ROW
    tiles[:num_real, 1] = num_after * tokens_per_tile
    tiles[:num_real, 2] = bounds[row]
    tiles[:num_real, 3] = query_lens[row]
    return tiles
