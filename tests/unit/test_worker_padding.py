"""Batch sizes to capture and the layout of a padded decode step, against values worked out by hand."""

from typing import Any

import numpy as np
import pytest

from tests.worker_steps import admission, int32, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.padding import (
    DecodeLayout,
    DecodeWords,
    TableShape,
    captured_batch_sizes,
    choose_batch_size,
)
from worker_svc.batch.sequence_table import SequenceTable

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16, vocab_size=100
)
ADDRESS = (1 << 40) + 8
SHAPE = TableShape(num_columns=5, spare_cell=20)


def decode_batch(**changes: Any) -> InputBatch:
    """Two decode rows: lane 3 at position 4, lane 1 at position 5."""
    table = SequenceTable(LIMITS)
    admissions = (admission(3, 4, (7,)), admission(1, 5, (3, 4)))
    table.apply(step(1, [(3, 4, True), (1, 5, True)], admissions=admissions))
    fields: dict[str, Any] = {"append_lanes": int32([3]), "append_block_ids": int32([9])}
    return InputBatch(table, table.apply(step(2, [(3, 1, True), (1, 1, True)], **fields | changes)))


def written(batch: InputBatch, num_rows: int) -> list[list[int]]:
    """Return cells, block ids, lanes, positions and order, from a buffer full of an older step."""
    words = np.full(DecodeLayout(num_rows=num_rows).num_words, 77, np.int32)
    DecodeWords(words, num_rows=num_rows, table=SHAPE).write(batch, told_address=ADDRESS)
    assert words[-4:].view(np.int64).tolist() == [ADDRESS, 0]
    return parts_of(words)


def parts_of(words: np.ndarray[Any, np.dtype[np.int32]]) -> list[list[int]]:
    parts = words[:-4]
    stride = len(parts) // 6
    return [parts[: 2 * stride].view(np.int64).tolist(), *parts[2 * stride :].reshape(4, stride).tolist()]


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (30, (1, 2, 4, 8, 16, 24, 30)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
        (37, (1, 2, 4, 8, 16, 24, 32, 37)),
    ],
)
def test_the_last_captured_size_is_max_num_seqs(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert captured_batch_sizes(max_num_seqs) == sizes


def test_large_sizes_stand_further_apart() -> None:
    assert captured_batch_sizes(300)[-6:] == (240, 248, 256, 272, 288, 300)


@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (2, 2), (3, 4), (9, 16), (25, 30), (30, 30)])
def test_the_smallest_size_that_holds_the_rows_is_chosen(num_rows: int, size: int) -> None:
    assert choose_batch_size(num_rows, (1, 2, 4, 8, 16, 24, 30)) == size


def test_more_rows_than_were_captured_are_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="31 rows, but the largest captured batch is 30"):
        choose_batch_size(31, (1, 30))


def test_the_whole_padded_tail_is_cleared() -> None:
    # Lane 3's second block stands in cell 3 * 5 + 1.
    assert written(decode_batch(), 4) == [
        [16, 20, 20, 20],
        [9, 0, 0, 0],
        [3, 1, -1, -1],
        [4, 5, 0, 0],
        [1, 0, 2, 3],
    ]


def test_parts_are_as_long_as_a_multiple_of_four() -> None:
    assert [DecodeLayout(num_rows=num_rows).stride for num_rows in (1, 4, 5, 37)] == [4, 4, 8, 40]
    assert written(decode_batch(), 2) == written(decode_batch(), 4)


def test_padding_alone_writes_nowhere() -> None:
    words = np.full(28, 77, np.int32)
    DecodeWords(words, num_rows=2, table=SHAPE).write_padding()
    assert words[-4:].tolist() == [0] * 4
    assert parts_of(words) == [[20] * 4, [0] * 4, [-1] * 4, [0] * 4, [0, 1, 2, 3]]


def test_what_does_not_fit_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="2 rows do not fit into 1"):
        written(decode_batch(), 1)
    batch = decode_batch(append_lanes=int32([3, 1, 1]), append_block_ids=int32([9, 10, 11]))
    with pytest.raises(AssertionError, match="3 appended blocks do not fit into 2"):
        written(batch, 2)
