"""Memory that the ranks of one host share: a ring of messages, signs of life, and whether the end is meant.

It has no name and needs no clean-up: it goes with the last process that holds it, however that ends.
Linux only. Knows nothing about what messages mean.

    | is stopping | beats of rank 0 | beats of rank 1 | ... | ring |
"""

import mmap
import os

from worker_svc.errors import StartupError
from worker_svc.tp.ring import RingReader, RingWriter, ring_bytes

RING_CAPACITY_BYTES = 4 * 1024**2
"""A step of decodes has 3 KB at 256 rows, one that admits a prompt of 32,768 tokens 130 KB; a larger one
goes through in pieces."""
_LINE_WORDS = 8


class SharedBlock:
    """One host's block. Each of its ranks is a reader of the ring but the one that writes it, if any."""

    def __init__(self, descriptor: int, *, num_ranks: int, num_readers: int) -> None:
        """Map it; ``create`` and ``open`` are the ways to one."""
        self._descriptor = descriptor
        self._num_ranks = num_ranks
        self._num_readers = num_readers
        header_bytes = 8 * _LINE_WORDS * (1 + num_ranks)
        memory = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))
        self._words = memory[:header_bytes].cast("Q")
        self._ring = memory[header_bytes:]

    @classmethod
    def create(
        cls, *, num_ranks: int, num_readers: int, capacity_bytes: int = RING_CAPACITY_BYTES
    ) -> "SharedBlock":
        """Make one, zeroed."""
        descriptor = os.memfd_create("stepwire-ranks")
        header_bytes = 8 * _LINE_WORDS * (1 + num_ranks)
        os.truncate(descriptor, header_bytes + ring_bytes(capacity_bytes, num_readers=num_readers))
        return cls(descriptor, num_ranks=num_ranks, num_readers=num_readers)

    @classmethod
    def open(cls, path: str, *, num_ranks: int, num_readers: int) -> "SharedBlock":
        """Open another process's, while that lives.

        Raises:
            StartupError: if it lives no more.
        """
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise StartupError(f"a rank of the worker group has ended while it started: {error}") from error
        return cls(descriptor, num_ranks=num_ranks, num_readers=num_readers)

    @property
    def path(self) -> str:
        """Where other processes of this user and host open it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def is_stopping(self) -> bool:
        """Whether the group is to end: a rank that goes is not missed any more."""
        return bool(self._words[0])

    def stop(self) -> None:
        """Tell all ranks of the host to end."""
        self._words[0] = 1

    def beat(self, local_rank: int) -> None:
        """Show that a rank lives."""
        self._words[_LINE_WORDS * (1 + local_rank)] += 1

    def beats(self) -> tuple[int, ...]:
        """Tell each rank's beats so far."""
        return tuple(self._words[_LINE_WORDS::_LINE_WORDS].tolist())

    def writer(self) -> RingWriter:
        """Make the one writer of the ring."""
        return RingWriter(self._ring, self._num_readers)

    def reader(self, index: int) -> RingReader:
        """Make one of its readers."""
        return RingReader(self._ring, self._num_readers, index=index)
