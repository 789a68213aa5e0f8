"""Tokens a second, from a count that only grows and is looked at now and then.

Pure: knows nothing about clocks or about what is counted.
"""

_LEAST_SECONDS = 1.0
"""Looks that come closer together than this see the rate of before."""


class TokenRate:
    """The rate between the last two looks that were far enough apart."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._num_tokens = 0
        self._rate = 0.0

    def update(self, seconds: float, num_tokens: int) -> float:
        """Look at the count again; return tokens a second.

        Args:
            seconds: Since the count began at 0. Earlier than before: it has begun anew.
            num_tokens: The count.
        """
        if seconds < self._seconds:
            self._seconds, self._num_tokens = 0.0, 0
        passed_seconds = seconds - self._seconds
        if passed_seconds >= _LEAST_SECONDS:
            self._rate = (num_tokens - self._num_tokens) / passed_seconds
            self._seconds, self._num_tokens = seconds, num_tokens
        return self._rate
