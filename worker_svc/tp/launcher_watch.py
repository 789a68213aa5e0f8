"""Notices when the process that started a rank, torchrun, ends, in a thread of its own.

It watches from before the ranks meet: what they meet in goes with torchrun, and they would wait for it
for half an hour. Linux only. Knows nothing about other ranks.
"""

import logging
import os
import select
import threading
from collections.abc import Callable

from worker_svc.errors import DeviceLostError

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""How soon the thread ends once it is stopped."""


class LauncherWatch:
    """Watches one process."""

    def __init__(self, pid: int | None, on_lost: Callable[[DeviceLostError], object]) -> None:
        """Make it; ``start`` starts it.

        Args:
            pid: Process that started this rank, which must not live on without it; None: nobody.
            on_lost: Called in the thread, once, when it has ended.
        """
        self._pid = pid
        self._on_lost = on_lost
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        if self._pid is not None:
            # A daemon: it has nothing to end in order.
            threading.Thread(target=self._run, args=(self._pid,), name="launcher watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon: the launcher is not missed from now on."""
        self._stopped.set()

    def _run(self, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._lose()
            return
        except OSError as error:
            _logger.warning("the launcher, process %d, is not watched: %s", pid, error)
            return
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        while not self._stopped.is_set():
            if poller.poll(1000 * _LOOK_SECONDS):
                self._lose()
                break
        os.close(descriptor)

    def _lose(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._on_lost(DeviceLostError("the launcher of the worker group has ended"))
