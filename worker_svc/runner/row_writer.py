"""Writes into rows of tables on the device, from staged memory, in the order of the device's queue.

Knows nothing about what the rows are. Legend: W int32 words.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from worker_svc.batch.step import Int32Array
from worker_svc.runner.staging import StagingRing


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWrite:
    """The cells of a row from its start on, and what they become."""

    row: torch.Tensor
    """One dimension, 4 bytes a cell."""
    values: npt.NDArray[Any]
    """Of the same dtype."""


class RowWriter:
    """Queues writes, several from one staging buffer."""

    def __init__(self, ring: StagingRing) -> None:
        self._ring = ring

    def write(self, writes: Iterable[RowWrite]) -> None:
        """Queue a copy for each write; longer ones than a staging buffer in pieces."""
        pieces = [piece for write in writes for piece in self._pieces(write)]
        position = 0
        while position < len(pieces):
            buffer, end = self._ring.take(), 0
            while position < len(pieces) and end + len(pieces[position][1]) <= self._ring.num_words:
                destination_W, words = pieces[position]
                start, end = end, end + len(words)
                buffer.words[start:end] = words
                destination_W.copy_(buffer.tensor_W[start:end], non_blocking=True)
                position += 1
            self._ring.guard(buffer)

    def _pieces(self, write: RowWrite) -> list[tuple[torch.Tensor, Int32Array]]:
        """Cut a write to pieces that fit a buffer, as words."""
        row_W, words, most = write.row.view(torch.int32), write.values.view("<i4"), self._ring.num_words
        return [
            (row_W[start : start + len(words[start : start + most])], words[start : start + most])
            for start in range(0, len(words), most)
        ]
