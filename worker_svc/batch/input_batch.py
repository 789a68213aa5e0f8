"""An applied step as the flat arrays that the model runs on.

Rows of one token come first, wherever the engine put them; sampled tokens still come out in the
engine's order, because the sampling rows point back. Knows nothing about tensors or padding.
Legend: T packed tokens, B rows, M blocks of the longest row.
"""

from dataclasses import dataclass

import numpy as np

from worker_svc.batch.sampling_rows import SamplingRows, gather_sampling_rows
from worker_svc.batch.sequence_table import SequenceTable, StepRows
from worker_svc.batch.step import Int32Array, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """One step, ready to upload."""

    token_lanes: Int64Array
    """(T,): the token's lane; its id is read from the token pool at (lane, position)."""
    positions: Int64Array
    """(T,): absolute index in the request."""
    slot_mapping: Int64Array
    """(T,): where the token's K and V go; negative: nowhere."""
    cu_seqlens_q: Int32Array
    """(B + 1,): running sum of query lengths from 0."""
    query_lens: Int32Array
    """(B,): tokens of the row in this step."""
    seq_lens: Int32Array
    """(B,): context length after this step."""
    block_table: Int32Array
    """(B, M): the row's blocks; what stands past its own is not to be read."""
    num_decode_rows: int
    """Rows [0, num_decode_rows) have one token each."""
    sampling: SamplingRows

    @property
    def num_rows(self) -> int:
        """Rows of the step, padding included."""
        return len(self.seq_lens)


def build_input_batch(table: SequenceTable, rows: StepRows) -> InputBatch:
    """Build the arrays of the step that ``table`` has just applied."""
    order = np.argsort(rows.num_tokens > 1, kind="stable")
    lanes, query_lens, starts = rows.lanes[order], rows.num_tokens[order], rows.starts[order]
    cu_seqlens_q = np.zeros(len(order) + 1, np.int64)
    np.cumsum(query_lens, out=cu_seqlens_q[1:])
    token_lanes = np.repeat(lanes, query_lens)
    positions = np.arange(cu_seqlens_q[-1]) + np.repeat(starts - cu_seqlens_q[:-1], query_lens)
    seq_lens = starts + query_lens
    return InputBatch(
        token_lanes=token_lanes,
        positions=positions,
        slot_mapping=_slots(table, token_lanes, positions),
        cu_seqlens_q=cu_seqlens_q.astype(np.int32),
        query_lens=query_lens.astype(np.int32),
        seq_lens=seq_lens.astype(np.int32),
        block_table=_block_tables(table, lanes, seq_lens),
        num_decode_rows=int(np.count_nonzero(query_lens == 1)),
        sampling=_sampling_rows(table, rows, order=order, cu_seqlens_q=cu_seqlens_q),
    )


def _slots(table: SequenceTable, token_lanes: Int64Array, positions: Int64Array) -> Int64Array:
    block_size = table.limits.block_size
    columns, offsets = np.divmod(positions, block_size)
    # int64 before the product: block_id * block_size passes 2**31 in a large pool.
    return table.block_table[token_lanes, columns].astype(np.int64) * block_size + offsets


def _block_tables(table: SequenceTable, lanes: Int64Array, seq_lens: Int64Array) -> Int32Array:
    longest = int(seq_lens.max(initial=0))
    return table.block_table[:, : -(-longest // table.limits.block_size)][lanes]


def _sampling_rows(
    table: SequenceTable, rows: StepRows, *, order: Int64Array, cu_seqlens_q: Int64Array
) -> SamplingRows:
    last_token_of_row = np.empty(len(order), np.int64)
    last_token_of_row[order] = cu_seqlens_q[1:] - 1
    sampling = np.flatnonzero(rows.samples)
    return gather_sampling_rows(
        table,
        rows.lanes[sampling],
        positions=rows.starts[sampling] + rows.num_tokens[sampling],
        token_rows=last_token_of_row[sampling],
    )
