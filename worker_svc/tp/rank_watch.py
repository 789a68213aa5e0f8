"""Notices when another rank of this host ends or falls silent, in a thread of its own.

A process that ends is noticed at once, one that is stopped or starved of the CPU by its beats. A device
call that hangs is another's to notice: the thread goes on beating. Linux only. Knows nothing about steps.
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence

from worker_svc.errors import DeviceLostError
from worker_svc.tp.shared_block import SharedBlock
from worker_svc.tp.silence import SilenceWatch

_logger = logging.getLogger(__name__)

BEATS_IN_LIMIT = 20
"""How often a rank beats before it counts as silent."""
MAX_BEAT_SECONDS = 0.5


class RankWatch:
    """Beats for this rank and watches the others of its host."""

    def __init__(
        self,
        block: SharedBlock,
        *,
        ranks: Sequence[tuple[int, int]],
        own_index: int,
        limit_seconds: float,
        on_lost: Callable[[DeviceLostError], object],
    ) -> None:
        """Make it; ``start`` starts it.

        Args:
            block: The host's.
            ranks: Rank and process id of each rank of the host, in their order there.
            own_index: Which of them this is.
            limit_seconds: How long one may be silent.
            on_lost: Called in the thread, once, when a rank is lost though the group is not stopping.
        """
        self._block = block
        self._ranks = ranks
        self._own_index = own_index
        self._beat_seconds = min(MAX_BEAT_SECONDS, limit_seconds / BEATS_IN_LIMIT)
        self._silence = SilenceWatch(limit_seconds=limit_seconds, look_seconds=self._beat_seconds)
        self._limit_seconds = limit_seconds
        self._on_lost = on_lost
        self._stopped = threading.Event()
        # A daemon: it has nothing to end in order.
        self._thread = threading.Thread(target=self._run, name="rank watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon: whoever goes from now on is not missed here."""
        self._stopped.set()

    def _run(self) -> None:
        poller, watched = select.poll(), self._open_processes()
        for descriptor in watched:
            poller.register(descriptor, select.POLLIN)
        while not self._stopped.is_set() and not self._block.is_stopping:
            self._block.beat(self._own_index)
            ended = poller.poll(1000 * self._beat_seconds)
            silent = self._silence.look(self._block.beats(), time.monotonic())
            if ended:
                self._lose(f"{watched[ended[0][0]]} of the worker group has ended")
            elif silent is not None:
                self._lose_silent(*self._ranks[silent])

    def _open_processes(self) -> dict[int, str]:
        """Return a descriptor of each process that is watched, and what it is."""
        processes = {pid: f"rank {rank}" for rank, pid in self._ranks}
        del processes[self._ranks[self._own_index][1]]
        descriptors = ((_open_process(pid), what) for pid, what in processes.items())
        return {descriptor: what for descriptor, what in descriptors if descriptor is not None}

    def _lose_silent(self, rank: int, pid: int) -> None:
        """Kill the process first: it may be stopped, and torchrun would ask it to end for half a minute."""
        if not self._block.is_stopping:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(pid, signal.SIGKILL)
        limit = f"{self._limit_seconds:g} s"
        self._lose(f"rank {rank} of the worker group has shown no sign of life for {limit}")

    def _lose(self, message: str) -> None:
        if not self._stopped.is_set() and not self._block.is_stopping:
            self._stopped.set()
            self._on_lost(DeviceLostError(message))


def _open_process(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        _logger.warning("process %d is watched by its signs of life only: %s", pid, error)
        return None
