"""Pads a step of decode rows to a batch size that was captured.

Padding rows point at block 0, the worker's own, with no context, and write nowhere. Knows nothing
about graphs or devices.
"""

from bisect import bisect_left
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from worker_svc.batch.input_batch import InputBatch

DType = TypeVar("DType", bound=np.generic)


def captured_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """List the batch sizes to capture, ascending: 1, 2, 4, then every 8, the last ``max_num_seqs``."""
    sizes = {1, 2, 4, *range(8, max_num_seqs, 8), max_num_seqs}
    return tuple(sorted(size for size in sizes if size <= max_num_seqs))


def choose_batch_size(num_rows: int, sizes: tuple[int, ...]) -> int:
    """Choose the smallest captured size that holds ``num_rows`` rows.

    Args:
        num_rows: Rows of the step, at most the last of ``sizes``.
        sizes: Captured sizes, ascending.
    """
    assert num_rows <= sizes[-1], f"{num_rows} rows, but the largest captured batch is {sizes[-1]}"
    return sizes[bisect_left(sizes, num_rows)]


def pad_decode_batch(batch: InputBatch, num_rows: int) -> InputBatch:
    """Pad a batch of decode rows to ``num_rows`` rows.

    A padding row has one token, read from lane 0, whose K and V go nowhere. The sampling rows stay
    as they are: nobody reads a padding row's logits.
    """
    assert batch.num_decode_rows == batch.num_rows, "only decode rows can be padded"
    num_padding = num_rows - batch.num_rows
    assert num_padding >= 0, f"{batch.num_rows} rows do not fit into {num_rows}"
    if num_padding == 0:
        return batch
    return replace(
        batch,
        token_lanes=_padded(batch.token_lanes, num_padding, value=0),
        positions=_padded(batch.positions, num_padding, value=0),
        slot_mapping=_padded(batch.slot_mapping, num_padding, value=-1),
        cu_seqlens_q=np.arange(num_rows + 1, dtype=np.int32),
        query_lens=_padded(batch.query_lens, num_padding, value=1),
        seq_lens=_padded(batch.seq_lens, num_padding, value=0),
        block_table=_padded(batch.block_table, num_padding, value=0),
        num_decode_rows=num_rows,
    )


def _padded(array: npt.NDArray[DType], num_padding: int, *, value: int) -> npt.NDArray[DType]:
    tail = np.full((num_padding, *array.shape[1:]), value, array.dtype)
    return np.concatenate([array, tail])
