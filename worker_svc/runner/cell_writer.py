"""Writes into cells of tables on the device: one upload for all of them, in the order of the device's queue.

Knows nothing about what the cells are. Legend: W cells of a table, of four bytes each.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.batch.step import Int64Array
from worker_svc.runner.packed_upload import ALIGNMENT_WORDS, PackedUpload

_WORDS_PER_CELL = 3
"""Where it is, and what it becomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellWrite:
    """Some cells of a table, and what they become."""

    table_W: torch.Tensor
    """The whole table as int32, in one dimension."""
    cells: Int64Array
    """No cell twice, nor in another write beside this one."""
    values: npt.NDArray[Any]
    """As many, of four bytes."""


def row_write(table_W: torch.Tensor, values: npt.NDArray[Any], *, first: int) -> CellWrite:
    """Make a write of neighbouring cells."""
    return CellWrite(table_W=table_W, cells=np.arange(first, first + len(values)), values=values)


class CellWriter:
    """Queues writes: a copy to the device, and a launch for each table."""

    def __init__(self, upload: PackedUpload) -> None:
        self._upload = upload
        self._most_cells = (upload.num_words - 2 * ALIGNMENT_WORDS) // _WORDS_PER_CELL
        """Of one upload."""

    def write(self, writes: Iterable[CellWrite]) -> None:
        """Queue the writes; more than one upload holds in pieces."""
        tables = _by_table(writes)
        if sum(len(write.cells) for write in tables) <= self._most_cells:
            self._write(tables)
            return
        for write in tables:
            for start in range(0, len(write.cells), self._most_cells):
                piece = slice(start, start + self._most_cells)
                self._write([replace(write, cells=write.cells[piece], values=write.values[piece])])

    def _write(self, tables: list[CellWrite]) -> None:
        if not tables:
            return
        on_device = self._upload.upload(
            {
                "cells": np.concatenate([write.cells for write in tables]),
                "words": np.concatenate([write.values for write in tables]),
            }
        )
        sizes = [len(write.cells) for write in tables]
        cells, words = (torch.split(on_device[name], sizes) for name in ("cells", "words"))
        for write, cells_of_table, words_of_table in zip(tables, cells, words, strict=True):
            write.table_W.index_copy_(0, cells_of_table, words_of_table)


def _by_table(writes: Iterable[CellWrite]) -> list[CellWrite]:
    """Join the writes of each table to one, of words."""
    joined: dict[int, list[CellWrite]] = {}
    for write in writes:
        if len(write.cells):
            joined.setdefault(write.table_W.data_ptr(), []).append(write)
    return [
        CellWrite(
            table_W=parts[0].table_W,
            cells=np.concatenate([part.cells for part in parts]),
            values=np.concatenate([part.values.view(np.int32) for part in parts]),
        )
        for parts in joined.values()
    ]
