"""Waits for launched steps in a thread of its own, so that the compute thread can take the next one.

Knows nothing about what steps are or who is told.
"""

import logging
import queue
import threading
from collections.abc import Callable

from worker_svc.runner.step_executor import PendingStep

_logger = logging.getLogger(__name__)


class DeviceWatch:
    """Tells when steps are computed.

    Args:
        tell: Called in the watching thread with each step, in the order they were asked for.
    """

    def __init__(self, tell: Callable[[PendingStep], object]) -> None:
        self._tell = tell
        self._asked: queue.SimpleQueue[PendingStep] = queue.SimpleQueue()
        # A daemon, so that a device that hangs cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name="device watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def tell_when_computed(self, pending: PendingStep) -> None:
        """Ask for a step."""
        self._asked.put(pending)

    def _run(self) -> None:
        while True:
            pending = self._asked.get()
            try:
                pending.launched.wait_until_computed()
            except Exception:
                # Whoever is told waits, too, and meets the same failure.
                _logger.exception("waiting for step %d failed", pending.step_id)
            self._tell(pending)
