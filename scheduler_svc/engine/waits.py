"""When live requests are told that they wait for a worker, and that the wait is over.

    some group serves ──the last one is lost──► told WAITING_FOR_WORKER now and again while it lasts
            ▲                                                    │
            └───────────── a group serves: told RUNNING ─────────┘

It is told again so that proxies between client and server see life in the stream. Knows nothing about
clocks (the caller says what time it is), nor about who is told.
"""

from scheduler_svc.engine.values import LiveStatus

REPEAT_SECONDS = 10.0


class Waits:
    """Whether all live requests wait, and when that is to be told again."""

    def __init__(self, repeat_seconds: float = REPEAT_SECONDS) -> None:
        self._repeat_ns = round(repeat_seconds * 1e9)
        self._next_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        """When the wait is to be told again; None while there is none."""
        return self._next_ns

    def take_due(self, now_ns: int, *, is_serving: bool) -> LiveStatus | None:
        """Return what every live request is to be told now, if anything."""
        if is_serving:
            was_told, self._next_ns = self._next_ns is not None, None
            return LiveStatus.RUNNING if was_told else None
        if self._next_ns is not None and now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + self._repeat_ns
        return LiveStatus.WAITING_FOR_WORKER
