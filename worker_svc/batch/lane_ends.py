"""Which lanes have sampled a stop id: in a lease they compute nothing more.

The scheduler core decides by the same rule, so that both agree without asking. Length limits are no
matter of this: no lease grants a row more tokens than its request may have. Knows nothing about steps.
Legend: R rows, C stop ids of a row.
"""

from dataclasses import dataclass

import numpy as np

from worker_svc.batch.checks import MAX_STOP_IDS
from worker_svc.batch.step import Admission, Int32Array, Int64Array, UInt64Array

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRows:
    """Lanes as of when a step was launched; some may be another request's when its tokens come."""

    lanes: Int64Array
    stop_ids: Int32Array
    """(C, R)."""
    incarnations: UInt64Array


class LaneEnds:
    """Stop ids of every lane, and whether one of them was sampled."""

    def __init__(self, max_num_seqs: int) -> None:
        self.has_ended = np.zeros(max_num_seqs, np.bool_)
        """By lane: its request has sampled a stop id since its admission."""
        self.num_changes = 0
        """Grows whenever ``has_ended`` may have changed."""
        # Column by column, as many as any lane has used.
        self._stop_ids = np.full((MAX_STOP_IDS, max_num_seqs), _NO_TOKEN, np.int32)
        self._num_columns = 0
        self._incarnation: UInt64Array = np.zeros(max_num_seqs, np.uint64)
        self._stops_from = np.zeros(max_num_seqs, np.int64)
        """Position from which on a stop id ends the request."""

    def admit(self, admission: Admission) -> None:
        """Take over a lane for a request."""
        lane, stop_ids = admission.lane, admission.sampling.stop_token_ids
        self.has_ended[lane] = False
        self.num_changes += 1
        self._incarnation[lane] = admission.incarnation
        self._stop_ids[: self._num_columns, lane] = _NO_TOKEN
        self._stop_ids[: len(stop_ids), lane] = stop_ids
        self._num_columns = max(self._num_columns, len(stop_ids))
        self._stops_from[lane] = admission.num_prompt_tokens + admission.sampling.min_tokens

    def watch(self, lanes: Int64Array) -> WatchedRows:
        """Take down what ends the requests that hold these lanes now."""
        return WatchedRows(
            lanes=lanes,
            stop_ids=self._stop_ids[: self._num_columns, lanes],
            incarnations=self._incarnation[lanes],
        )

    def note_sampled(self, rows: WatchedRows, token_ids: Int32Array, *, positions: Int64Array) -> None:
        """Note the token that each of these rows has sampled, and its absolute position."""
        is_id = rows.stop_ids == token_ids
        if is_id.any():
            lanes = rows.lanes
            is_stop = is_id.any(axis=0) & (positions >= self._stops_from[lanes])
            is_stop &= rows.incarnations == self._incarnation[lanes]
            self.has_ended[lanes[is_stop]] = True
            self.num_changes += 1
