"""Lays newly admitted lanes out as arrays that travel with a step's own: table cells, and what they become.

A captured step has room for some tokens, blocks and parameters, and what is over goes to cells that nobody
reads. Knows nothing about graphs or devices, nor what parameters mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import Admission, Int32Array, Int64Array

_LEAST_ROOM, _TOKENS_A_LANE = 32, 256
"""Admissions of a captured step, or one for so many of its tokens; more of them are written by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionShape:
    """Sizes of the arrays."""

    num_tokens: int
    num_blocks: int
    num_words: int
    """Of parameters."""

    def holds(self, other: "AdmissionShape") -> bool:
        """Tell whether arrays of these sizes have room for those of ``other``."""
        return (
            other.num_tokens <= self.num_tokens
            and other.num_blocks <= self.num_blocks
            and other.num_words <= self.num_words
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Words of each array, in the order in which they lie; a cell takes two."""
        return {
            "token_cells": 2 * self.num_tokens,
            "token_values": self.num_tokens,
            "block_cells": 2 * self.num_blocks,
            "block_values": self.num_blocks,
            "parameter_cells": 2 * self.num_words,
            "parameter_values": self.num_words,
        }


NO_ADMISSIONS = AdmissionShape(num_tokens=0, num_blocks=0, num_words=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTables:
    """How the tables lie, whose cells are numbered row by row, and which cells nobody reads."""

    num_positions: int
    """Of a lane's tokens."""
    spare_token: int
    num_columns: int
    """Of a lane's blocks."""
    spare_block: int
    spare_word: int


def padded_admissions(num_tokens: int, limits: TableLimits, *, words_per_lane: int) -> AdmissionShape:
    """Return the shape of a captured step of so many tokens: those of prompts that begin with it fit."""
    num_lanes = min(max(_LEAST_ROOM, num_tokens // _TOKENS_A_LANE), max(_LEAST_ROOM, limits.max_num_seqs))
    return _shape(num_tokens, num_lanes, limits=limits, words_per_lane=words_per_lane)


def most_admissions(limits: TableLimits, *, words_per_lane: int) -> AdmissionShape:
    """Return a shape that holds those of nearly every step that is not captured, and of all that are."""
    num_lanes = max(limits.max_num_seqs, _LEAST_ROOM)
    return _shape(limits.max_num_batched_tokens, num_lanes, limits=limits, words_per_lane=words_per_lane)


def _shape(num_tokens: int, num_lanes: int, *, limits: TableLimits, words_per_lane: int) -> AdmissionShape:
    if num_tokens == limits.max_num_batched_tokens:
        # Its last prompt is one that goes on in the next step, and travels whole.
        num_tokens += min(num_tokens, limits.max_model_len)
    return AdmissionShape(
        num_tokens=num_tokens,
        num_blocks=num_tokens // limits.block_size + num_lanes,
        num_words=num_lanes * words_per_lane,
    )


def exact_admissions(admissions: tuple[Admission, ...], *, words_per_lane: int) -> AdmissionShape:
    """Return the shape of just these."""
    return AdmissionShape(
        num_tokens=sum([len(admission.token_ids) for admission in admissions]),
        num_blocks=sum([len(admission.block_ids) for admission in admissions]),
        num_words=words_per_lane * len(admissions),
    )


def write_admissions(
    arrays: Mapping[str, Int32Array],
    admissions: tuple[Admission, ...],
    *,
    tables: LaneTables,
    parameters: tuple[Int64Array, Int32Array],
) -> None:
    """Write what puts the lanes' tokens, blocks and parameters into their tables.

    Args:
        arrays: To be overwritten, of ``AdmissionShape.sizes``, which hold them.
        admissions: May be none.
        tables: How they lie.
        parameters: The cells of the lanes' parameters, and what they become.
    """
    _write_rows(
        arrays["token_cells"],
        arrays["token_values"],
        rows=[one.token_ids for one in admissions],
        firsts=[one.lane * tables.num_positions for one in admissions],
        spare=tables.spare_token,
    )
    _write_rows(
        arrays["block_cells"],
        arrays["block_values"],
        rows=[one.block_ids for one in admissions],
        firsts=[one.lane * tables.num_columns for one in admissions],
        spare=tables.spare_block,
    )
    cells, values = parameters
    all_cells = arrays["parameter_cells"].view(np.int64)
    all_cells[: len(cells)] = cells
    all_cells[len(cells) :] = tables.spare_word
    arrays["parameter_values"][: len(cells)] = values


def _write_rows(
    cells: Int32Array, values: Int32Array, *, rows: list[Int32Array], firsts: list[int], spare: int
) -> None:
    """Write rows, of which each one's first cell is told."""
    cells_64 = cells.view(np.int64)
    if len(rows) < 2:
        # As all are, for half of what it takes.
        end = 0
        for row, first in zip(rows, firsts, strict=True):
            end = len(row)
            values[:end] = row
            cells_64[:end] = np.arange(first, first + end)
        cells_64[end:] = spare
        return
    lens = np.array([len(row) for row in rows])
    ends = lens.cumsum()
    num_values = int(ends[-1])
    np.concatenate(rows, out=values[:num_values])
    offsets = np.array(firsts) - ends + lens
    np.add(np.arange(num_values), offsets.repeat(lens), out=cells_64[:num_values])
    cells_64[num_values:] = spare
