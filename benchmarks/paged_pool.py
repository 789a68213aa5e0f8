"""A pool of cells at Qwen3-0.6B's heads, in which decode attention's benchmarks read scattered blocks.

Knows nothing about kernels.
"""

from dataclasses import dataclass

import torch

HEADS, KV_HEADS, HEAD_DIM = 16, 8, 128
BYTES_PER_CELL = 2 * KV_HEADS * HEAD_DIM * 2
POOL_CELLS = 5 << 20
"""20 GiB of K and V."""
MIN_BYTES = 256 << 20
"""Read between two launches over the same blocks: five times an H200's L2."""
MIN_SETS, MAX_SETS = 8, 64
"""Launches in one graph, whose own start takes some microseconds."""
WIDEST_CONTEXT = 4096 + 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of the sweep."""

    num_rows: int
    context_len: int
    block_size: int

    @property
    def num_bytes(self) -> int:
        """K and V that one launch reads."""
        return self.num_rows * self.context_len * BYTES_PER_CELL


class CellPool:
    """The pool, and tables over it."""

    def __init__(self) -> None:
        self._pool = torch.empty(2, POOL_CELLS, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        self._pool.normal_()

    def caches(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pool as caches of this block size."""
        shape = (POOL_CELLS // block_size, block_size, KV_HEADS, HEAD_DIM)
        return self._pool[0].view(shape), self._pool[1].view(shape)

    def tables(self, case: Case) -> list[torch.Tensor]:
        """Return block tables of launches that share no block, as far as the pool goes."""
        num_blocks = -(-case.context_len // case.block_size)
        num_used = case.num_rows * num_blocks
        ids = torch.randperm(POOL_CELLS // case.block_size, device="cuda", dtype=torch.int32)
        num_wanted = min(max(MIN_BYTES // case.num_bytes + 1, MIN_SETS), MAX_SETS)
        num_sets = max(1, min(num_wanted, len(ids) // num_used))
        tables = ids.new_zeros(num_sets, case.num_rows, WIDEST_CONTEXT // case.block_size + 1)
        tables[:, :, :num_blocks] = ids[: num_sets * num_used].view(num_sets, case.num_rows, num_blocks)
        return list(tables)
