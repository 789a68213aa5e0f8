"""Gives streams their turns to write: each after a rest of its own, and few in one round of the event loop.

New calls wait for the loop's rounds, so a round must be short; and while they come in a burst, rounds with
turns come only every 16 ms: were all streams to write their tokens as they come, a thousand new calls would
wait for seconds. What does not get its turn gathers meanwhile and goes as one message. New streams wait for
the round, too: what is done for many, one after the other, finds its code and data in the processor's caches,
and costs two thirds. Knows nothing about what is written.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable

_TURNS_PER_ROUND = 8
"""A write costs 50 us, so these take as long as two new streams."""
_BURST_STREAMS = 8
_BURST_SECONDS = 0.04
"""So many new streams within this time are a burst, where many are open."""
_FEW_STREAMS = 32
"""So many write at once what they have: were they to wait for a burst's rounds, half of 32 requests that come
together would have their first token after 43 to 47 ms, instead of 19 to 26, where a device takes 0.9 ms a
step (two cores of a Xeon).
"""
_BURST_ROUND_SECONDS = 0.016
_BURST_TURNS_PER_ROUND = 16
_BURST_SHARE = 16
"""Of many that wait, a sixteenth has its turn in a round. Against rounds of 8 turns every 4 ms, a flood of
1,000 streams is taken in after 0.6 s and not 1.4 s, at 0.9 s and not 2.1 s of CPU of all processes, and half
have their first token after 0.6 s and not 0.8 s (benchmarks/split_cost.py, two cores of a Xeon).
"""
_NEW_AT_ONCE = 16
"""So many new streams need not wait for the round: 1,000 that come as fast as they can be taken in would be a
hundred at a time, and whatever else waits for the loop would wait for 30 ms again and again.
"""
_TIMER_MARGIN_SECONDS = 0.001
"""uvloop rounds timers to milliseconds; one that came early would have to be set again and again."""


class WriteTurns:
    """The streams of one front end that want to write, or rest until they may."""

    def __init__(self, num_open: Callable[[], int]) -> None:
        """Make turns for the running event loop; ``num_open`` tells how many streams are open."""
        self._num_open = num_open
        self._num_left = _TURNS_PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._new: list[asyncio.Future[None]] = []
        self._resting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._num_rests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_round_set = False
        self._new_streams_seconds: deque[float] = deque(maxlen=_BURST_STREAMS)

    def note_new_stream(self) -> None:
        """Count a stream that was opened: where many were, more may wait."""
        self._new_streams_seconds.append(asyncio.get_running_loop().time())

    async def take_in(self) -> None:
        """Count a new stream; in a burst have it wait until it is taken in together with others."""
        self.note_new_stream()
        if self.is_burst:
            turn = asyncio.get_running_loop().create_future()
            self._new.append(turn)
            if len(self._new) == _NEW_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._take_in_new)
            self._set_round()
            await turn

    @property
    def is_burst(self) -> bool:
        """Whether new streams come in a burst, and are many together."""
        recent = self._new_streams_seconds
        if len(recent) < _BURST_STREAMS or self._num_open() <= _FEW_STREAMS:
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
        self._take_in_new()
        self._num_left = _TURNS_PER_ROUND
        if self.is_burst:
            self._num_left = max(_BURST_TURNS_PER_ROUND, len(self._waiting) // _BURST_SHARE)
        while self._waiting and self._num_left:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled likewise, or its rest was ended before
                turn.set_result(None)
                self._num_left -= 1
        if self._waiting:
            self._set_round()

    def _take_in_new(self) -> None:
        new, self._new = self._new, []
        for turn in new:
            if not turn.done():  # cancelled, because its stream is gone
                turn.set_result(None)
