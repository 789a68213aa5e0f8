"""Launches decode attention of many rows, none of them split, on a Hopper GPU. Knows nothing about requests.

Shapes: B rows, L lanes, M blocks a table, N blocks, S block size, H heads, K KV heads, D head dim.
"""

from dataclasses import dataclass

import torch

from kernels.decode_config import MAX_FUSED_PAIRS
from kernels.dependent_launch import launch_options
from kernels.gluon_kernels import describe_tiles, hopper_decode_kernel, runs_gluon, tile_layout
from kernels.gpu import num_multiprocessors
from kernels.work_counters import work_counters

NUM_WARPS = 4
"""Those that fetch are added by the compiler."""
TILE = 64
"""Cells whose K and V are fetched at once: what products are wide."""
QUERIES = 8
"""Most heads of a group: the narrowest side of a product."""
HEAD_DIM = 128
"""Its halves are a swizzled line of shared memory each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """How a multiprocessor's shared memory and registers are shared out."""

    num_stages: int
    """Tiles that a program holds."""
    num_programs: int
    """On each multiprocessor."""
    max_registers: int


PROGRAMS = (
    (384, Programs(num_stages=6, num_programs=1, max_registers=120)),
    (896, Programs(num_stages=3, num_programs=2, max_registers=120)),
)
PROGRAMS_OF_MANY = Programs(num_stages=2, num_programs=3, max_registers=80)
"""By the most rows times KV heads. Where most programs have one piece of work, those of a multiprocessor that
has more of them end late. In us alone, of 6 stages, 3 and 2: 33 rows of 500 to 2,000 tokens 41.8, 47.7 and
52.7 (in halves, by paged_decode_kernel, 46.1), 56 rows 66.5, 65.2 and 68.0, 128 rows of 100 to 1,600 tokens
108.5, 107.0 and 106.5, on an H200."""


def suits_hopper_decode(cache_NSKD: torch.Tensor, num_rows: int) -> bool:
    """Whether hopper_decode takes such a cache, and so many rows are better off there than split."""
    num_blocks, block_size, num_kv_heads, head_dim = cache_NSKD.shape
    is_power_of_2 = block_size & (block_size - 1) == 0
    return (
        num_rows * num_kv_heads > MAX_FUSED_PAIRS
        and cache_NSKD.dtype in (torch.bfloat16, torch.float16)
        and head_dim == HEAD_DIM
        and is_power_of_2
        and block_size >= 16
        and num_blocks * block_size < 2**31
        and runs_gluon(cache_NSKD.device)
    )


def can_use_hopper_decode(cache_NSKD: torch.Tensor, num_rows: int, *, num_heads: int) -> bool:
    """Whether it takes so many rows of queries, too, which have the cache's dtype."""
    return num_heads <= QUERIES * cache_NSKD.shape[2] and suits_hopper_decode(cache_NSKD, num_rows)


def hopper_decode(
    q_BHD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    *,
    scale_log2: float,
    order_B: torch.Tensor,
    out: torch.Tensor,
    is_dependent: bool = False,
) -> None:
    """Write out_BHD: each row's one token's attention over its context; see paged_decode.

    Takes rows and caches of which can_use_hopper_decode says so, and scale_log2, that of the scores times
    log2(e). Programs draw rows in the order of order_B, so that long ones should come first.
    """
    _, block_size, num_kv_heads, head_dim = key_cache_NSKD.shape
    num_works, box_size = len(q_BHD) * num_kv_heads, min(block_size, TILE)
    programs = next((programs for most, programs in PROGRAMS if num_works <= most), PROGRAMS_OF_MANY)
    num_programs = programs.num_programs * num_multiprocessors(q_BHD.device)
    boxes, box = (-1, box_size, num_kv_heads * head_dim), (1, box_size, head_dim // 2)
    hopper_decode_kernel[(min(num_works, num_programs),)](
        q_BHD,
        describe_tiles(key_cache_NSKD.view(boxes), *box),
        describe_tiles(value_cache_NSKD.view(boxes), *box),
        block_table_LM,
        lanes_B,
        seq_lens_B,
        order_B,
        out,
        work_counters("hopper_decode", q_BHD.device),
        scale_log2,
        q_BHD.stride(0),
        block_table_LM.stride(0),
        num_works,
        BLOCK_SIZE=block_size,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=q_BHD.shape[1] // num_kv_heads,
        QUERIES=QUERIES,
        TILE=TILE,
        NUM_STAGES=programs.num_stages,
        WEIGHTS=tile_layout((QUERIES, TILE), q_BHD.dtype),
        TILES=tile_layout((TILE, head_dim // 2), q_BHD.dtype),
        num_warps=NUM_WARPS,
        maxnreg=programs.max_registers,
        **launch_options(is_dependent),
    )
