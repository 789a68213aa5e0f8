"""Padding to captured batch sizes, against values worked out by hand."""

import numpy as np
import pytest

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.padding import captured_batch_sizes, choose_batch_size, pad_decode_batch
from worker_svc.batch.sampling_rows import gather_sampling_rows
from worker_svc.batch.sequence_table import SequenceTable

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16, vocab_size=100
)


def decode_batch() -> InputBatch:
    """Two decode rows: lane 3 at position 5, lane 1 at position 0."""
    lanes, positions = np.array([3, 1]), np.array([6, 1])
    return InputBatch(
        token_lanes=lanes,
        positions=np.array([5, 0]),
        slot_mapping=np.array([37, 80]),
        cu_seqlens_q=np.array([0, 1, 2], np.int32),
        query_lens=np.array([1, 1], np.int32),
        seq_lens=np.array([6, 1], np.int32),
        block_table=np.array([[7, 9], [20, 3]], np.int32),
        num_decode_rows=2,
        sampling=gather_sampling_rows(
            SequenceTable(LIMITS), lanes, positions=positions, token_rows=np.array([0, 1])
        ),
    )


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (30, (1, 2, 4, 8, 16, 24, 30)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
    ],
)
def test_the_last_captured_size_is_max_num_seqs(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert captured_batch_sizes(max_num_seqs) == sizes


@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (2, 2), (3, 4), (9, 16), (25, 30), (30, 30)])
def test_the_smallest_size_that_holds_the_rows_is_chosen(num_rows: int, size: int) -> None:
    assert choose_batch_size(num_rows, (1, 2, 4, 8, 16, 24, 30)) == size


def test_more_rows_than_were_captured_are_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="31 rows, but the largest captured batch is 30"):
        choose_batch_size(31, (1, 30))


def test_padding_rows_point_at_block_0_with_no_context_and_write_nowhere() -> None:
    padded = pad_decode_batch(decode_batch(), 4)
    assert padded.token_lanes.tolist() == [3, 1, 0, 0]
    assert padded.positions.tolist() == [5, 0, 0, 0]
    assert padded.slot_mapping.tolist() == [37, 80, -1, -1]
    assert padded.cu_seqlens_q.tolist() == [0, 1, 2, 3, 4]
    assert padded.query_lens.tolist() == [1, 1, 1, 1]
    assert padded.seq_lens.tolist() == [6, 1, 0, 0]
    assert padded.block_table.tolist() == [[7, 9], [20, 3], [0, 0], [0, 0]]
    assert padded.num_decode_rows == 4
    assert padded.sampling.token_rows.tolist() == [0, 1]
    assert padded.slot_mapping.dtype == np.int64
    assert padded.seq_lens.dtype == padded.block_table.dtype == padded.cu_seqlens_q.dtype == np.int32


def test_a_batch_of_the_right_size_is_left_alone() -> None:
    batch = decode_batch()
    assert pad_decode_batch(batch, 2) is batch
