"""How long a stream gathers output after each write: nothing where streams are few, 20 ms where 256 are open.

More streams gather for longer, so that all of them together write as often as 256. Streams count that
are open, or as many as were opened within a second where those are more: short requests that come fast
are few at a time, and were each token a message, they would keep each other from being taken in. While
new ones come in a burst, all gather for longer still. Knows nothing about what is written.
"""

import time
from collections.abc import Callable

_NUM_STREAMS_WITHOUT_DELAY = 32
_MANY_STREAMS = 256
_DELAY_OF_MANY_SECONDS = 0.020
"""A message costs 40-60 us of CPU: 256 streams at 20 ms each take about half a core."""
_TIMES_IN_BURST = 4
_LONGEST_DELAY_SECONDS = 0.100


class WriteDelay:
    """The delay of all streams of one front end, each of which begins it with its own last write."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._second = 0
        self._num_opened = 0
        """In the present second of the clock."""
        self._num_opened_before = 0
        """In the second before it."""

    def note_new_stream(self) -> None:
        """Count a stream that was opened."""
        self._advance()
        self._num_opened += 1

    def seconds(self, num_open: int, *, is_burst: bool = False) -> float:
        """Tell how long a stream gathers now, with ``num_open`` streams open."""
        share_of_second = self._advance()
        num_opened_lately = self._num_opened + (1.0 - share_of_second) * self._num_opened_before
        num_streams = max(num_open, num_opened_lately)
        if num_streams < _MANY_STREAMS:
            num_delayed = max(0.0, num_streams - _NUM_STREAMS_WITHOUT_DELAY)
            share = num_delayed / (_MANY_STREAMS - _NUM_STREAMS_WITHOUT_DELAY)
        else:
            share = num_streams / _MANY_STREAMS
        seconds = _DELAY_OF_MANY_SECONDS * share * (_TIMES_IN_BURST if is_burst else 1)
        return min(_LONGEST_DELAY_SECONDS, seconds)

    def _advance(self) -> float:
        """Take note of the time; return how much of the present second is over."""
        now_seconds = self._clock_seconds()
        second = int(now_seconds)
        if second != self._second:
            self._num_opened_before = self._num_opened if second == self._second + 1 else 0
            self._num_opened = 0
            self._second = second
        return now_seconds - second
