"""Which lanes have sampled a stop id: in a lease they compute nothing more.

The scheduler core decides by the same rule, so that both agree without asking. Length limits are no
matter of this: no lease grants a row more tokens than its request may have. Knows nothing about steps.
"""

import numpy as np

from worker_svc.batch.checks import MAX_STOP_IDS
from worker_svc.batch.step import Admission, Int32Array, Int64Array, UInt64Array

_NO_TOKEN = -1


class LaneEnds:
    """Stop ids of every lane, and whether one of them was sampled."""

    def __init__(self, max_num_seqs: int) -> None:
        self.has_ended = np.zeros(max_num_seqs, np.bool_)
        """By lane: its request has sampled a stop id since its admission."""
        # Column by column, as many as any lane has used: 256 rows with one stop id cost 8 us.
        self._stop_ids = np.full((MAX_STOP_IDS, max_num_seqs), _NO_TOKEN, np.int32)
        self._num_columns = 0
        self._incarnation: UInt64Array = np.zeros(max_num_seqs, np.uint64)
        self._stops_from = np.zeros(max_num_seqs, np.int64)
        """Position from which on a stop id ends the request."""

    def admit(self, admission: Admission) -> None:
        """Take over a lane for a request."""
        lane, stop_ids = admission.lane, admission.sampling.stop_token_ids
        self.has_ended[lane] = False
        self._incarnation[lane] = admission.incarnation
        self._stop_ids[: self._num_columns, lane] = _NO_TOKEN
        self._stop_ids[: len(stop_ids), lane] = stop_ids
        self._num_columns = max(self._num_columns, len(stop_ids))
        self._stops_from[lane] = admission.num_prompt_tokens + admission.sampling.min_tokens

    def incarnations(self, lanes: Int64Array) -> UInt64Array:
        """Give the numbers of the requests that hold these lanes now, or did last."""
        return self._incarnation[lanes]

    def note_sampled(
        self, lanes: Int64Array, token_ids: Int32Array, *, positions: Int64Array, incarnations: UInt64Array
    ) -> None:
        """Note the token that each of these lanes has sampled.

        Args:
            lanes: as of when the tokens were launched; some may be another request's by now.
            token_ids: one of each lane.
            positions: absolute, of the tokens.
            incarnations: of the lanes when the tokens were launched.
        """
        is_stop = np.zeros(len(lanes), np.bool_)
        for column in self._stop_ids[: self._num_columns]:
            is_stop |= column[lanes] == token_ids
        if is_stop.any():
            is_stop &= (positions >= self._stops_from[lanes]) & (incarnations == self._incarnation[lanes])
            self.has_ended[lanes[is_stop]] = True
