"""Writes into cells of tables on the device: one upload for all of them, in the order of the device's queue.

Knows nothing about what the cells are. Legend: W cells of a table, of four bytes each.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.batch.step import Int32Array, Int64Array
from worker_svc.runner.packed_upload import ALIGNMENT_WORDS, PackedUpload

_WORDS_PER_CELL = 3
"""Where it is, and what it becomes."""


class CellWrite(NamedTuple):
    """Some cells of a table, and what they become; a named tuple, as an admission takes some."""

    table_W: torch.Tensor
    """The whole table as int32, in one dimension."""
    cells: Int64Array | range
    """No cell twice, nor in another write beside this one."""
    values: npt.NDArray[Any]
    """As many, of four bytes."""


def row_write(table_W: torch.Tensor, values: npt.NDArray[Any], *, first: int) -> CellWrite:
    """Make a write of neighbouring cells."""
    return CellWrite(table_W, range(first, first + len(values)), values)


class CellWriter:
    """Queues writes: a copy to the device, and a launch for each table."""

    def __init__(self, upload: PackedUpload) -> None:
        self._upload = upload
        self._most_cells = (upload.num_words - 2 * ALIGNMENT_WORDS) // _WORDS_PER_CELL
        """Of one upload."""
        self._ramp = np.arange(self._most_cells)

    def write(self, writes: Iterable[CellWrite]) -> None:
        """Queue the writes, in as few uploads as hold them."""
        queued: list[CellWrite] = []
        num_left = self._most_cells
        for write in writes:
            rest = write
            while len(rest.cells) > num_left:
                queued.append(_part(rest, slice(num_left)))
                rest = _part(rest, slice(num_left, None))
                self._write(queued)
                queued, num_left = [], self._most_cells
            if len(rest.cells):
                queued.append(rest)
                num_left -= len(rest.cells)
        if queued:
            self._write(queued)

    def _write(self, writes: list[CellWrite]) -> None:
        tables = _by_table(writes)
        table_sizes = [sum(len(write.cells) for write in parts) for parts in tables]
        num_cells = sum(table_sizes)
        sizes = {"cells": 2 * num_cells, "words": num_cells}

        def fill(words: Mapping[str, Int32Array]) -> None:
            self._fill(tables, cells=words["cells"].view(np.int64), values=words["words"])

        self._upload.send(sizes, fill)
        on_device = self._upload.views(sizes)
        cells = torch.split(on_device["cells"].view(torch.int64), table_sizes)
        values = torch.split(on_device["words"], table_sizes)
        for parts, cells_of_table, values_of_table in zip(tables, cells, values, strict=True):
            parts[0].table_W.index_copy_(0, cells_of_table, values_of_table)

    def _fill(self, tables: list[list[CellWrite]], *, cells: Int64Array, values: Int32Array) -> None:
        start = 0
        for parts in tables:
            for write in parts:
                end = start + len(write.cells)
                values[start:end] = write.values.view(np.int32)
                if isinstance(write.cells, range):
                    np.add(self._ramp[: end - start], write.cells.start, out=cells[start:end])
                else:
                    cells[start:end] = write.cells
                start = end


def _part(write: CellWrite, cells: slice) -> CellWrite:
    return CellWrite(write.table_W, write.cells[cells], write.values[cells])


def _by_table(writes: list[CellWrite]) -> list[list[CellWrite]]:
    grouped: dict[int, list[CellWrite]] = {}
    for write in writes:
        grouped.setdefault(write.table_W.data_ptr(), []).append(write)
    return list(grouped.values())
