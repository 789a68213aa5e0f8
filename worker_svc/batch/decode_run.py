"""Rows that decode step after step, and what of them need not be looked up again for each step.

Most steps have the rows of the step before. Knows nothing about blocks or limits: the sequence table
says how far the rows can go.
"""

from functools import cached_property

import numpy as np

from worker_svc.batch.lane_ends import WatchedRows
from worker_svc.batch.lane_parameters import LaneParameters, SamplingFlavour
from worker_svc.batch.step import Int64Array


class DecodeRun:
    """The same lanes, one token a step. All arrays may be shared by several steps: nobody writes to them.

    Args:
        lanes: int64.
        starts: Position of the token that each lane computes next.
        num_until_length: Steps until the first lane has all its tokens.
        watched: The lanes' stop ids.
    """

    def __init__(
        self, lanes: Int64Array, starts: Int64Array, *, num_until_length: int, watched: WatchedRows
    ) -> None:
        self.lanes = lanes
        self.starts = starts
        self.watched = watched
        self.num_until_length = num_until_length
        self.num_checked = 0
        """Steps that all lanes are known to have slots and tokens left for."""
        self.num_tokens = np.ones(len(lanes), np.int64)
        self.samples = np.ones(len(lanes), np.bool_)
        self._flavour: SamplingFlavour | None = None
        """Once it cannot change any more."""

    def go_on(self) -> Int64Array:
        """Count a step; return where the next one starts."""
        self.num_until_length -= 1
        self.num_checked -= 1
        self.starts = self.starts + 1
        return self.starts

    def flavour(self, parameters: LaneParameters, starts: Int64Array) -> SamplingFlavour:
        """Tell what it takes to sample the step that starts there."""
        if self._flavour is not None:
            return self._flavour
        flavour = parameters.flavour_of(self.lanes, num_known=starts + 1)
        if flavour == parameters.flavour_without_masks(self.lanes):
            # Masks end and never begin.
            self._flavour = flavour
        return flavour

    @cached_property
    def longest_first(self) -> Int64Array:
        """Rows by their length, which grows alike."""
        return np.argsort(-self.starts, kind="stable")
