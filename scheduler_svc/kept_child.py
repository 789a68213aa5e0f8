"""A child process that is started again when it dies: at once after a good life, else ever later.

So a crash costs a moment, and a child that dies as soon as it starts costs two starts a minute. Knows
nothing about what its child does, nor when a death should end the whole service.
"""

from collections.abc import Callable

from scheduler_svc.child_process import ChildProcess

_GOOD_LIFE_SECONDS = 60.0
_FIRST_DELAY_SECONDS = 1.0
_MAX_DELAY_SECONDS = 30.0


class KeptChild:
    """One place in the service, and the process that fills it now."""

    def __init__(self, start: Callable[[], ChildProcess], *, now_seconds: float) -> None:
        """Start the first process with ``start``, which later ones are started with, too."""
        self._start = start
        self._started_seconds = now_seconds
        self._num_short_lives = 0
        self._is_buried = False
        self.child = start()
        """The process, or the last one while none runs."""
        self.restart_seconds: float | None = None
        """When the next process is due, while one is."""

    def has_died(self) -> bool:
        """Whether the process ended and nothing was done about it yet."""
        return not self._is_buried and self.child.is_dead()

    def bury(self, now_seconds: float) -> float:
        """Note a death; return after how many seconds the next process is due."""
        assert self.has_died(), "buries a dead process, once"
        if now_seconds - self._started_seconds >= _GOOD_LIFE_SECONDS:
            self._num_short_lives = 0
        delay_seconds = 0.0
        if self._num_short_lives:
            longest = _FIRST_DELAY_SECONDS * 2.0 ** (self._num_short_lives - 1)
            delay_seconds = min(_MAX_DELAY_SECONDS, longest)
        self._num_short_lives += 1
        self._is_buried = True
        self.restart_seconds = now_seconds + delay_seconds
        return delay_seconds

    def start_if_due(self, now_seconds: float) -> None:
        """Start the next process where its time has come."""
        if self.restart_seconds is None or now_seconds < self.restart_seconds:
            return
        self.restart_seconds = None
        self._is_buried = False
        self._started_seconds = now_seconds
        self.child = self._start()
