"""The memory behind the rows of a step: the copy engine reads it faster than it fills zeros in.

Knows nothing about what rows are.

Shapes: R rows, I numbers a row.
"""

import torch


def with_rows_behind(rows_RI: torch.Tensor, block_rows: int) -> torch.Tensor:
    """Return the rows and what lies behind them in their memory, up to whole blocks if there is so much.

    A kernel that copies blocks of rows and has no use for what lies behind the last one then copies no row
    from outside. On an H200 a layer's four tiled projections of Qwen3-0.6B take 42.8 us at 136 rows where the
    last block of 64 is filled up with zeros, and 29.0 where it is read
    (benchmarks/results/step_loop_h200_202611.md).

    Args:
        rows_RI: contiguous in I; a step's rows are the first ones of a workspace.
        block_rows: rows of a block.
    """
    num_rows, num_inputs = rows_RI.shape
    stride = rows_RI.stride(0)
    num_numbers = rows_RI.untyped_storage().nbytes() // rows_RI.itemsize
    num_there = (num_numbers - rows_RI.storage_offset() - num_inputs) // stride + 1 if stride else num_rows
    num_whole = -(-num_rows // block_rows) * block_rows
    return rows_RI.as_strided((max(num_rows, min(num_whole, num_there)), num_inputs), (stride, 1))
