"""How often a service that died is started again: a few times a minute, then it is given up.

Knows nothing about processes or clocks (the caller says what time it is).
"""

from collections import deque

MAX_RESTARTS = 5
WINDOW_SECONDS = 60.0


class RestartBudget:
    """The restarts of one service within the last minute."""

    def __init__(self) -> None:
        self._restarts_seconds: deque[float] = deque()

    def take(self, now_seconds: float) -> int | None:
        """Take one restart; return how many that makes within a minute, None where none is left."""
        while self._restarts_seconds and now_seconds - self._restarts_seconds[0] >= WINDOW_SECONDS:
            self._restarts_seconds.popleft()
        if len(self._restarts_seconds) == MAX_RESTARTS:
            return None
        self._restarts_seconds.append(now_seconds)
        return len(self._restarts_seconds)
