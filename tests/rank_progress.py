"""Where a rank of a test stands: lines as it goes, and the stacks of its threads where that takes long.

A rank that waits for another one, and one that compiles kernels, look alike from outside. Holds no tests.
Knows nothing about what ranks compute.
"""

import faulthandler
import sys
import time

TRACE_SECONDS = 30.0
"""How often stacks are written to the standard error stream."""


class RankProgress:
    """One rank's lines. Each tells the seconds since the first."""

    def __init__(self, rank: int, *, trace_seconds: float = TRACE_SECONDS) -> None:
        self._rank = rank
        self._start_seconds = time.monotonic()
        faulthandler.dump_traceback_later(trace_seconds, repeat=True)

    def tell(self, what: str) -> None:
        """Write a line at once: who reads it may be about to end this process."""
        seconds = time.monotonic() - self._start_seconds
        # In one write, even where Python has been told not to buffer: ranks share the stream.
        sys.stdout.write(f"rank {self._rank}, {seconds:.1f} s: {what}\n")
        sys.stdout.flush()
