"""Puts newly admitted lanes into the device's tables: as part of a step, which may be captured, or before it.

Knows nothing about what a step computes.
"""

from collections.abc import Mapping
from itertools import chain

import numpy as np
import torch

from worker_svc.batch.admission_layout import (
    NO_ADMISSIONS,
    AdmissionShape,
    LaneTables,
    exact_admissions,
    most_admissions,
    padded_admissions,
    write_admissions,
)
from worker_svc.batch.step import Admission, Int32Array
from worker_svc.runner.parameter_write import WORDS_PER_LANE, parameter_cells, parameter_words
from worker_svc.runner.step_parts import StepParts

_NO_PARAMETERS = (np.empty(0, np.int64), np.empty(0, np.int32))


class LaneAdmissions:
    """Writes into the tables of one rank."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        tables, words_W = parts.tables, parts.sampler.words_W
        self._num_lanes = parts.limits.max_num_seqs
        self._layout = LaneTables(
            num_positions=tables.token_pool_LP.shape[1],
            spare_token=len(tables.tokens_W) - 1,
            num_columns=tables.shape.num_columns,
            spare_block=tables.shape.spare_cell,
            spare_word=len(words_W) - 1,
        )

    def write(self, admissions: tuple[Admission, ...]) -> None:
        """Queue all writes now."""
        if admissions:
            tables, sampler = self._parts.tables, self._parts.sampler
            self._parts.writer.write(chain(tables.list_writes(admissions), sampler.list_writes(admissions)))

    def padded_shape(self, num_tokens: int) -> AdmissionShape:
        """Return the shape that a captured step of so many tokens has room for."""
        return padded_admissions(num_tokens, self._parts.limits, words_per_lane=WORDS_PER_LANE)

    @property
    def most(self) -> AdmissionShape:
        """What a step that is not captured has room for."""
        return most_admissions(self._parts.limits, words_per_lane=WORDS_PER_LANE)

    def join(
        self, admissions: tuple[Admission, ...], room: AdmissionShape
    ) -> tuple[tuple[Admission, ...], AdmissionShape]:
        """Leave to a step what it has room for; where it has not, queue all writes now.

        Returns:
            What the step is to ``fill`` in and ``launch``, and its shape.
        """
        if not admissions:
            return (), NO_ADMISSIONS
        shape = exact_admissions(admissions, words_per_lane=WORDS_PER_LANE)
        if not room.holds(shape):
            self.write(admissions)
            return (), NO_ADMISSIONS
        self._parts.writer.write(self._parts.sampler.list_rare_writes(admissions))
        return admissions, shape

    def fill(self, arrays: Mapping[str, Int32Array], admissions: tuple[Admission, ...]) -> None:
        """Write a step's arrays; see ``write_admissions``."""
        parameters = _NO_PARAMETERS
        if admissions:
            cells = parameter_cells(admissions, num_lanes=self._num_lanes)
            parameters = cells, parameter_words(admissions)
        write_admissions(arrays, admissions, tables=self._layout, parameters=parameters)

    def launch(self, uploaded: Mapping[str, torch.Tensor]) -> None:
        """Queue the writes of a step's uploaded arrays."""
        for table_W, name in (
            (self._parts.tables.tokens_W, "token"),
            (self._parts.tables.block_cells_W, "block"),
            (self._parts.sampler.words_W, "parameter"),
        ):
            cells_W = uploaded[f"{name}_cells"].view(torch.int64)
            table_W.scatter_(0, cells_W, uploaded[f"{name}_values"])
