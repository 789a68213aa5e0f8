"""Launches decode attention of many rows, none of them split, on a Hopper GPU. Knows nothing about requests.

Shapes: B rows, L lanes, M blocks a table, N blocks, S block size, H heads, K KV heads, D head dim.
"""

import torch

from kernels.decode_config import MIN_WHOLE_PAIRS
from kernels.dependent_launch import launch_options
from kernels.gluon_kernels import describe_tiles, hopper_decode_kernel, runs_gluon, tile_layout
from kernels.gpu import num_multiprocessors
from kernels.work_counters import work_counters

NUM_WARPS = 4
"""Those that fetch are added by the compiler."""
TILE = 64
"""Cells whose K and V are fetched at once: what products are wide."""
NUM_STAGES = 2
PROGRAMS = 3
"""On each multiprocessor, as their shared memory and MAX_REGISTERS let it. In us alone, of 2 stages in three
programs, 3 in two and 6 in one: 64 rows of 100 to 1,600 tokens 59.5, 58.2 and 60.0, 128 rows 107.0, 106.4 and
109.1, 256 rows 206.3, 207.2 and 209.4, on an H200 on which paged_decode_kernel took 59.9, 110.2 and 206.9."""
MAX_REGISTERS = 80
QUERIES = 8
"""Most heads of a group: the narrowest side of a product."""
HEAD_DIM = 128
"""Its halves are a swizzled line of shared memory each."""


def can_use_hopper_decode(cache_NSKD: torch.Tensor, num_rows: int, *, num_heads: int) -> bool:
    """Whether hopper_decode takes such a cache and so many rows of queries of its dtype."""
    num_blocks, block_size, num_kv_heads, head_dim = cache_NSKD.shape
    is_power_of_2 = block_size & (block_size - 1) == 0
    return (
        num_rows * num_kv_heads >= MIN_WHOLE_PAIRS
        and cache_NSKD.dtype in (torch.bfloat16, torch.float16)
        and head_dim == HEAD_DIM
        and num_heads <= QUERIES * num_kv_heads
        and is_power_of_2
        and block_size >= 16
        and num_blocks * block_size < 2**31
        and runs_gluon(cache_NSKD.device)
    )


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
    boxes, box = (-1, box_size, num_kv_heads * head_dim), (1, box_size, head_dim // 2)
    hopper_decode_kernel[(min(num_works, PROGRAMS * num_multiprocessors(q_BHD.device)),)](
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
        NUM_STAGES=NUM_STAGES,
        WEIGHTS=tile_layout((QUERIES, TILE), q_BHD.dtype),
        TILES=tile_layout((TILE, head_dim // 2), q_BHD.dtype),
        num_warps=NUM_WARPS,
        maxnreg=MAX_REGISTERS,
        **launch_options(is_dependent),
    )
