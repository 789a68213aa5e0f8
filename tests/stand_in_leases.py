"""Leases of the stand-in worker: iterations of a step of decodes, until told otherwise.

Adds to stand_in_lanes.py what it takes to begin a lease and to go on with it. Knows nothing about
streams or time: the caller decides whether there is another iteration.
"""

import numpy as np
import numpy.typing as npt
from stepwire.worker.v1 import worker_service_pb2 as pb

from tests.stand_in_lanes import Int64Array, StandInLanes, check, ints, is_distinct


def ended_lease(step: pb.Step, iteration: int) -> pb.StepResult:
    """Tell that a lease ended before this iteration."""
    return pb.StepResult(step_id=step.step_id, iteration=iteration, is_last=True)


class LeasingLanes(StandInLanes):
    """All lanes of one epoch, which may be leased."""

    def begin_lease(self, step: pb.Step) -> None:
        """Begin a lease; ``next_iteration`` runs it.

        Raises:
            ProtocolFaultError: if it breaks the protocol.
        """
        self._apply_changes(step)
        lanes, granted = ints(step.row_lanes), ints(step.row_num_tokens)
        self._check_lanes(lanes, "leased")
        check(is_distinct(lanes), "row lanes are not distinct")
        check(len(lanes) == len(granted) == step.row_samples.count(1), "a row of a lease does not sample")
        check(not step.admissions, "a lease admits")
        check(step.num_steps == granted.max() and granted.min() >= 1, "a grant is not of the lease's length")
        known = self._num_known[lanes]
        check((self._num_computed[lanes] == known - 1).all(), "a row of a lease is no decode")
        check((known + granted <= self._max_total[lanes]).all(), "a grant past max_total_tokens")
        num_slots = self._num_blocks[lanes] * self._limits.block_size
        check((known - 1 + granted <= num_slots).all(), "a grant without blocks")

    def next_iteration(self, step: pb.Step, iteration: int) -> pb.StepResult:
        """Run the next iteration of a lease, or tell that it has ended since all its rows have.

        Raises:
            ProtocolFaultError: if a row cannot go on.
        """
        lanes = ints(step.row_lanes)
        goes_on = (ints(step.row_num_tokens) > iteration) & ~self._have_stopped(lanes)
        live = lanes[goes_on]
        if not len(live):
            return ended_lease(step, iteration)
        ones = np.ones(len(live), np.int64)
        result = self._run_rows(live, ones, ones.astype(np.bool_), step.step_id)
        token_ids = np.full(len(lanes), -1, "<i4")
        token_ids[goes_on] = np.frombuffer(result.token_ids, "<i4")
        result.token_ids = token_ids.tobytes()
        if result.logprob_counts:
            counts = np.zeros(len(lanes), "<i4")
            counts[goes_on] = np.frombuffer(result.logprob_counts, "<i4")
            result.logprob_counts = counts.tobytes()
        result.iteration = iteration
        result.is_last = iteration + 1 == step.num_steps
        return result

    def _have_stopped(self, lanes: Int64Array) -> npt.NDArray[np.bool_]:
        last_tokens = self._tokens[lanes, self._num_known[lanes] - 1].tolist()
        is_output = self._num_known[lanes] > self._num_prompt[lanes]
        pairs = zip(lanes.tolist(), last_tokens, strict=True)
        return is_output & np.array([token in self._stop_ids[lane] for lane, token in pairs], np.bool_)
