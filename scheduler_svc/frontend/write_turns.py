"""Gives streams their turns to write: each after a rest of its own, and few in one round of the event loop.

gRPC's server takes in one new call a round of the loop, so a round must be short; and while new calls
come in a burst, rounds with turns come only every 4 ms: were all streams to write their tokens as they
come, a thousand new calls would wait for seconds. What does not get its turn gathers meanwhile and goes
as one message. Knows nothing about what is written.
"""

import asyncio
import heapq
from collections import deque

_TURNS_PER_ROUND = 8
"""A write costs 50 us, so these take as long as a new stream."""
_BURST_STREAMS = 8
_BURST_SECONDS = 0.04
"""So many new streams within this time are a burst."""
_BURST_ROUND_SECONDS = 0.004
"""A flood of 1,000 streams is taken in after 0.70 s at 2 ms, 0.57 s at 4 ms. Half have their first token
after 0.42 s and 0.56 s, all after 0.82 s and 0.81 s (benchmarks/split_cost.py, two idle cores of a Xeon).
"""
_TIMER_MARGIN_SECONDS = 0.001
"""uvloop rounds timers to milliseconds; one that came early would have to be set again and again."""


class WriteTurns:
    """The streams of one front end that want to write, or rest until they may."""

    def __init__(self) -> None:
        """Make turns for the running event loop."""
        self._num_left = _TURNS_PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._resting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._num_rests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_round_set = False
        self._new_streams_seconds: deque[float] = deque(maxlen=_BURST_STREAMS)

    def note_new_stream(self) -> None:
        """Count a stream that was taken in: where many were, more may wait."""
        self._new_streams_seconds.append(asyncio.get_running_loop().time())

    @property
    def is_burst(self) -> bool:
        """Whether new streams come in a burst."""
        recent = self._new_streams_seconds
        if len(recent) < _BURST_STREAMS:
            return False
        return asyncio.get_running_loop().time() - recent[0] < _BURST_SECONDS

    async def take(self) -> None:
        """Wait for a turn; usually there is one at once."""
        if self._num_left and not self._waiting:
            self._num_left -= 1
            self._set_round()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._set_round()
        await turn

    def rest(self, seconds: float) -> asyncio.Future[None]:
        """Rest for some time, then wait for a turn: done when the turn has come."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._num_rests += 1
        rest = (loop.time() + seconds, self._num_rests, turn)
        heapq.heappush(self._resting, rest)
        if self._resting[0] is rest:
            self._set_timer()
        return turn

    def end_rest(self, turn: asyncio.Future[None]) -> None:
        """Have one that rests wait for its turn from now on."""
        self._waiting.append(turn)
        self._set_round()

    def _set_round(self) -> None:
        """Have the turns of the next round given out: the loop's next one, unless there is a burst."""
        if self._is_round_set:
            return
        self._is_round_set = True
        loop = asyncio.get_running_loop()
        if self.is_burst:
            loop.call_later(_BURST_ROUND_SECONDS, self._begin_round)
        else:
            loop.call_soon(self._begin_round)

    def _set_timer(self) -> None:
        """Have the first rest end in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._resting[0][0], self._end_rests)

    def _end_rests(self) -> None:
        self._timer = None
        due_seconds = asyncio.get_running_loop().time() + _TIMER_MARGIN_SECONDS
        while self._resting and self._resting[0][0] <= due_seconds:
            self._waiting.append(heapq.heappop(self._resting)[2])
        if self._resting:
            self._set_timer()
        if self._waiting:
            self._set_round()

    def _begin_round(self) -> None:
        self._is_round_set = False
        self._num_left = _TURNS_PER_ROUND
        while self._waiting and self._num_left:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled, because its stream is gone, or its rest was ended before
                turn.set_result(None)
                self._num_left -= 1
        if self._waiting:
            self._set_round()
