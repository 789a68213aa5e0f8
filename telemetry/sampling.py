"""What a process tells of itself at intervals: its own processor time, and gauges that only need a look.

Knows nothing about what the gauges are of.
"""

import asyncio
import time
from collections.abc import Callable

from telemetry.board import Slot

SAMPLE_SECONDS = 0.25
"""So much older than a scrape may sampled numbers be."""


async def keep_sampling(
    sample: Callable[[], None], cpu_seconds: Slot, *, interval_seconds: float = SAMPLE_SECONDS
) -> None:
    """Sample for ever, and a last time when cancelled."""
    base_seconds = cpu_seconds.value
    try:
        while True:
            sample()
            cpu_seconds.set(base_seconds + time.process_time())
            await asyncio.sleep(interval_seconds)
    finally:
        sample()
        cpu_seconds.set(base_seconds + time.process_time())
