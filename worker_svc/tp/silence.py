"""Decides from counted signs of life which rank has been silent for too long.

Pure: the caller says what time it is. Knows nothing about processes or memory.
"""

from collections.abc import Sequence


class SilenceWatch:
    """Looks at the beats of several ranks, again and again.

    Time in which the looking process itself stood still is held against nobody.
    """

    def __init__(self, *, limit_seconds: float, look_seconds: float) -> None:
        """Make it.

        Args:
            limit_seconds: How long a rank may be silent.
            look_seconds: How often it is looked at.
        """
        self._limit_seconds = limit_seconds
        self._most_seconds = 2 * look_seconds
        self._last_look_seconds: float | None = None
        self._beats: tuple[int, ...] = ()
        self._silent_seconds: list[float] = []

    def look(self, beats: Sequence[int], now_seconds: float) -> int | None:
        """Return the index of a rank that has been silent for too long, None where there is none."""
        if self._last_look_seconds is None:
            self._beats, self._silent_seconds = tuple(beats), [0.0] * len(beats)
            passed_seconds = 0.0
        else:
            passed_seconds = min(now_seconds - self._last_look_seconds, self._most_seconds)
        self._last_look_seconds = now_seconds
        for index, (before, now) in enumerate(zip(self._beats, beats, strict=True)):
            self._silent_seconds[index] = (
                self._silent_seconds[index] + passed_seconds if before == now else 0.0
            )
        self._beats = tuple(beats)
        return next(
            (i for i, seconds in enumerate(self._silent_seconds) if seconds > self._limit_seconds), None
        )
