"""How fast a worker and its link are, and how long leases should be for them.

A lease runs while results and the next step travel. So that the worker never waits, the steps in flight
behind the one whose result is on its way must last longer than the round trip; where steps of one
iteration do, there is no reason for longer ones. Knows nothing about streams or clocks: the caller says
how long things took.
"""

import math
from dataclasses import dataclass

from scheduler_svc.engine.values import StepTimes

_NEWEST_SHARE = 0.125
"""Share of the newest measurement in a running mean."""
_COVER = 4.0
"""How many round trips the steps in flight should last: round trips vary, and a step that takes over
leaves none but itself in flight. At 2, where a device takes 570 us a step, leases are of two: 574 to 581 us
a step come out and 430 to 470 of the worker's CPU; leases of four give 571 to 574 and 320 to 410
(benchmarks/worker_round_trip.py, two cores of a Xeon)."""
_LOST_SHARE = 0.03
"""With one step in flight every lease waits for a round trip: the share of its time that this may be."""


def lease_length(step_seconds: float, round_trip_seconds: float, *, num_credits: int, most: int) -> int:
    """Choose how many iterations a step of decodes should have.

    Args:
        step_seconds: what one iteration takes the worker; 0 while that is not known.
        round_trip_seconds: from a result's leaving the worker to the next step's arrival there.
        num_credits: steps that may be in flight.
        most: the longest lease allowed, at least 1.
    """
    if step_seconds <= 0:
        return 1
    num_steps_to_last = round_trip_seconds / step_seconds
    if num_credits == 1:
        wanted = num_steps_to_last / _LOST_SHARE
    else:
        wanted = _COVER * num_steps_to_last / (num_credits - 1)
    return max(1, min(most, math.ceil(wanted)))


@dataclass(slots=True)
class WorkerPace:
    """Running means of one worker epoch; 0 while nothing was measured."""

    decode_seconds: float = 0.0
    """Device time of one iteration of a step of decodes."""
    round_trip_seconds: float = 0.0
    """What the engine waited for results, less what the worker had the steps for."""
    idle_ratio: float = 0.0
    """Share of the device's time in which it had nothing to do though requests were running."""

    def lease_length(self, *, num_credits: int, most: int) -> int:
        """Choose how many iterations a step of decodes should have; see the function."""
        return lease_length(self.decode_seconds, self.round_trip_seconds, num_credits=num_credits, most=most)

    def note_answer(self, times: StepTimes, *, is_decode: bool, seconds_since_sent: float) -> None:
        """Take in the times of a result to a step that was sent so long ago."""
        self.note_result(
            busy_seconds=times.busy_seconds,
            idle_seconds=times.idle_seconds,
            num_decodes=times.num_iterations if is_decode else 0,
        )
        self.note_round_trip(seconds_since_sent - times.held_seconds)

    def note_result(self, *, busy_seconds: float, idle_seconds: float, num_decodes: int) -> None:
        """Take in the times of a result that tells so many iterations of a step of decodes."""
        if busy_seconds <= 0:
            return
        if num_decodes:
            self.decode_seconds = _mean(self.decode_seconds, busy_seconds / num_decodes)
        share = idle_seconds / (idle_seconds + busy_seconds)
        # Not as _mean: 0 is a measurement here.
        self.idle_ratio += _NEWEST_SHARE * (share - self.idle_ratio)

    def note_round_trip(self, seconds: float) -> None:
        """Take in what a step and its result were on their way for."""
        self.round_trip_seconds = _mean(self.round_trip_seconds, max(0.0, seconds))


def _mean(before: float, newest: float) -> float:
    return newest if before == 0.0 else before + _NEWEST_SHARE * (newest - before)
