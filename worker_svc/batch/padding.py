"""Lays a decode step out for a batch size that was captured: one buffer, all of it written each time.

Padding rows have lane -1 and write nowhere; spare appends go to a cell that nobody reads. Knows
nothing about graphs or devices. Legend: B rows, padding included; at most B blocks are appended; S is
B up to a multiple of four, so that each part starts at 16 bytes and kernels need no second variant.

    | cells of appended blocks (2 S: int64) | their ids (S) | lanes (S) | positions (S) | order (S) | last (4)

in int32 words; the order is that of the rows by their length, longest first, padding last. The last words
begin with an address (int64), of where the step's tokens and times are to be told, and are filled up.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.step import Int32Array

PADDING_LANE = -1
_NUM_PARTS = 6
_NUM_LAST_WORDS = 4
_FINE_STEP, _COARSE_STEP, _FINE_END = 8, 16, 256


def captured_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """List the batch sizes to capture, ascending: 1, 2, 4, every 8, from 256 every 16, ``max_num_seqs``."""
    fine, coarse = range(_FINE_STEP, _FINE_END, _FINE_STEP), range(_FINE_END, max_num_seqs, _COARSE_STEP)
    sizes = {1, 2, 4, *fine, *coarse, max_num_seqs}
    return tuple(sorted(size for size in sizes if size <= max_num_seqs))


def choose_batch_size(num_rows: int, sizes: tuple[int, ...]) -> int:
    """Choose the smallest captured size that holds ``num_rows`` rows.

    Args:
        num_rows: Rows of the step, at most the last of ``sizes``.
        sizes: Captured sizes, ascending.
    """
    assert num_rows <= sizes[-1], f"{num_rows} rows, but the largest captured batch is {sizes[-1]}"
    return sizes[bisect_left(sizes, num_rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """Of the device's block table, whose cells are numbered row by row."""

    num_columns: int
    spare_cell: int
    """Where appends of padding go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLayout:
    """Where the parts of a decode step of ``num_rows`` rows begin, in words."""

    num_rows: int

    @property
    def stride(self) -> int:
        """S."""
        return -(-self.num_rows // 4) * 4

    @property
    def num_words(self) -> int:
        """Words of all parts and the last ones."""
        return _NUM_PARTS * self.stride + _NUM_LAST_WORDS


class DecodeWords:
    """One buffer, written again and again: its parts are cut out once, which takes longer than writing.

    Args:
        words: As many int32 as the layout has, all of which each writing overwrites.
        num_rows: B.
        table: Of the block table.
    """

    def __init__(self, words: Int32Array, *, num_rows: int, table: TableShape) -> None:
        layout = DecodeLayout(num_rows=num_rows)
        stride = layout.stride
        assert len(words) == layout.num_words, f"{len(words)} words for {num_rows} rows"
        self._num_rows = num_rows
        self._num_columns = table.num_columns
        self._words = words
        self._cells = words[: 2 * stride].view("<i8")
        self._block_ids, self._lanes, self._positions, self._order = words[
            2 * stride : _NUM_PARTS * stride
        ].reshape(4, stride)
        self._address = words[_NUM_PARTS * stride :].view("<i8")[:1]
        self._padding = np.zeros_like(words)
        self._padding[: 2 * stride].view("<i8")[:] = table.spare_cell
        self._padding[3 * stride : 4 * stride] = PADDING_LANE
        self._padding[5 * stride : _NUM_PARTS * stride] = np.arange(stride)

    def write_padding(self) -> None:
        """Write a decode step that is padding only."""
        self._words[:] = self._padding

    def write(self, batch: InputBatch, *, told_address: int) -> None:
        """Write a decode step: at most B rows of one token, and at most as many appended blocks.

        Args:
            batch: the step's.
            told_address: of memory that the device writes each row's token to; in front go the step's times.
        """
        num_live, appends = batch.num_rows, batch.appends
        num_appended = len(appends.block_ids)
        assert batch.is_decode, "only decode rows can be padded"
        assert num_live <= self._num_rows, f"{num_live} rows do not fit into {self._num_rows}"
        assert num_appended <= self._num_rows, (
            f"{num_appended} appended blocks do not fit into {self._num_rows}"
        )
        self._words[:] = self._padding
        self._address[0] = told_address
        if num_appended:
            self._cells[:num_appended] = appends.lanes * self._num_columns + appends.columns
            self._block_ids[:num_appended] = appends.block_ids
        self._lanes[:num_live] = batch.lanes
        self._positions[:num_live] = batch.positions
        self._order[:num_live] = batch.longest_first
