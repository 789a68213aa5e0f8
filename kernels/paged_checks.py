"""What the paged attention launchers share: checks of their arguments, and a gather for references.

Knows nothing about kernels.

Shapes: T packed tokens, B rows, M blocks a table, N blocks, S block size, H heads, K KV heads, D head
dim, C cells of a row's context.
"""

import torch

MAX_HEAD_DIM = 256
MIN_BLOCK_SIZE = 16


def check_paged_attention(
    q_THD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_BM: torch.Tensor,
) -> None:
    """Raise ValueError where queries, caches and table do not fit each other or the kernels."""
    _check_caches(key_cache_NSKD, value_cache_NSKD)
    num_kv_heads, head_dim = key_cache_NSKD.shape[2:]
    if q_THD.ndim != 3 or q_THD.shape[2] != head_dim or q_THD.shape[1] % num_kv_heads:
        raise ValueError(f"queries of {tuple(q_THD.shape)} do not fit {num_kv_heads} KV heads of {head_dim}")
    if q_THD.dtype != key_cache_NSKD.dtype:
        raise ValueError(f"queries of {q_THD.dtype} do not fit a cache of {key_cache_NSKD.dtype}")
    if q_THD.stride()[1:] != (head_dim, 1):
        raise ValueError(f"queries must be contiguous in heads and dims, but have strides {q_THD.stride()}")
    if block_table_BM.ndim != 2 or block_table_BM.dtype != torch.int32 or block_table_BM.stride(1) != 1:
        raise ValueError(
            f"the block table must be int32 with contiguous rows, but is {block_table_BM.dtype} of "
            f"{tuple(block_table_BM.shape)}"
        )


def _check_caches(key_cache_NSKD: torch.Tensor, value_cache_NSKD: torch.Tensor) -> None:
    if key_cache_NSKD.shape != value_cache_NSKD.shape or key_cache_NSKD.dtype != value_cache_NSKD.dtype:
        raise ValueError(
            f"the caches must be alike, but are {key_cache_NSKD.dtype} of {tuple(key_cache_NSKD.shape)} "
            f"and {value_cache_NSKD.dtype} of {tuple(value_cache_NSKD.shape)}"
        )
    if key_cache_NSKD.ndim != 4 or not (key_cache_NSKD.is_contiguous() and value_cache_NSKD.is_contiguous()):
        raise ValueError("the caches must be contiguous (blocks, block size, KV heads, head dim)")
    block_size, head_dim = key_cache_NSKD.shape[1], key_cache_NSKD.shape[3]
    if block_size < MIN_BLOCK_SIZE or head_dim > MAX_HEAD_DIM or head_dim % 2:
        raise ValueError(
            f"blocks of {block_size} tokens and heads of {head_dim} are not supported: "
            f"at least {MIN_BLOCK_SIZE}, and at most {MAX_HEAD_DIM}, even"
        )


def check_index(name: str, index: torch.Tensor, num_entries: int) -> None:
    """Raise ValueError unless this is a contiguous int32 vector of so many entries."""
    if index.shape != (num_entries,) or index.dtype != torch.int32 or not index.is_contiguous():
        raise ValueError(
            f"{name} must be int32 of shape ({num_entries},), but is {index.dtype} of {tuple(index.shape)}"
        )


def check_out(out: torch.Tensor, q_THD: torch.Tensor) -> None:
    """Raise ValueError unless the output is contiguous and like the queries."""
    if out.shape != q_THD.shape or out.dtype != q_THD.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {q_THD.dtype} of {tuple(q_THD.shape)}, but is {out.dtype} of "
            f"{tuple(out.shape)}"
        )


def gather_cells(cache_NSKD: torch.Tensor, table_M: torch.Tensor, context_len: int) -> torch.Tensor:
    """Copy the cells of one row's context."""
    num_blocks = -(-context_len // cache_NSKD.shape[1])
    return cache_NSKD[table_M[:num_blocks].long()].flatten(0, 1)[:context_len]
