"""Waiting at both ends of the ring: the writer for room, a reader for the next message.

A reader looks again and again for a while, then sleeps between looks: a message that comes soon is taken
within microseconds, an idle rank needs a percent or two of a core. Knows nothing about what messages mean.
"""

import time
from collections.abc import Callable

from worker_svc.tp.ring import RingReader, RingWriter

SPIN_SECONDS = 0.002
"""More than a step of decodes takes on a GPU. On a CPU, which computes meanwhile, nobody spins."""
MIN_SLEEP_SECONDS = 0.00005
MAX_SLEEP_SECONDS = 0.001
_GROWTH_RATIO = 1.1


def write_message(writer: RingWriter, message: bytes) -> None:
    """Write a message, waiting for readers where there is no room: what ends them ends this process."""
    num_written = writer.write(message)
    while num_written < len(message):
        time.sleep(MIN_SLEEP_SECONDS)
        num_written = writer.write(message, num_written)


def next_message(reader: RingReader, *, is_stopping: Callable[[], bool], spin_seconds: float) -> bytes | None:
    """Wait for the next message; None once there is none and the group stops."""
    spin_until_seconds = time.perf_counter() + spin_seconds
    sleep_seconds = MIN_SLEEP_SECONDS
    while (message := reader.read()) is None:
        if is_stopping():
            return None
        if time.perf_counter() >= spin_until_seconds:
            time.sleep(sleep_seconds)
            sleep_seconds = min(MAX_SLEEP_SECONDS, sleep_seconds * _GROWTH_RATIO)
    return message
