"""Hands messages from one writer to several readers through memory they share, each read by all, in order.

No locks: each number has one writer, and stands on a cache line of its own. Knows nothing about
processes, about what messages mean, or how one waits.

    | written | read by 0 | read by 1 | ... | data, a ring                                   |
                                            | size, piece | size, piece |       | size, pie…  |
                                                  ▲ read by 1   ▲ read by 0   ▲ written

Positions count bytes since the start and never go back. A message stands in one piece where there is
room; one that meets the ring's end, or is larger than the room, goes in several, so that none is too large.
"""

import threading

_WORD_BYTES = 8
_LINE_BYTES = 64
_LINE_WORDS = _LINE_BYTES // _WORD_BYTES


def ring_bytes(capacity_bytes: int, *, num_readers: int) -> int:
    """Tell how much memory a ring takes.

    Args:
        capacity_bytes: What it holds at most; a multiple of 8.
        num_readers: All read every message.
    """
    return (1 + num_readers) * _LINE_BYTES + capacity_bytes


class _Ring:
    """What writer and readers have in common."""

    def __init__(self, memory: memoryview, num_readers: int) -> None:
        header_bytes = ring_bytes(0, num_readers=num_readers)
        self._words = memory[:header_bytes].cast("Q")
        self._data = memory[header_bytes:]
        self._sizes = self._data.cast("Q")
        self._capacity = len(self._data)
        self._num_readers = num_readers
        # What Python has as a memory barrier: processors that reorder stores, as ARM's do, must not tell
        # a position before the bytes it is about.
        self._barrier = threading.Lock()

    def _order(self) -> None:
        with self._barrier:
            return


class RingWriter(_Ring):
    """The one writer.

    Args:
        memory: Zeroed, of ``ring_bytes``.
        num_readers: All read every message.
    """

    def __init__(self, memory: memoryview, num_readers: int) -> None:
        super().__init__(memory, num_readers)
        self._written = 0
        self._end_of_room = self._capacity

    def write(self, message: bytes, num_written: int = 0) -> int:
        """Write as much of a message as there is room for now.

        Args:
            message: At least one byte.
            num_written: Bytes of it that earlier calls have written.

        Returns:
            Bytes of it that are written now; fewer than it has: call again once readers have read.
        """
        while num_written < len(message) and (num_free := self._num_free(len(message) - num_written)):
            offset = self._written % self._capacity
            room = min(num_free, self._capacity - offset) - _WORD_BYTES
            piece = message[num_written : num_written + room]
            num_written += len(piece)
            begin = offset + _WORD_BYTES
            self._data[begin : begin + len(piece)] = piece
            self._sizes[offset // _WORD_BYTES] = 2 * len(piece) + (num_written < len(message))
            self._written += _padded(len(piece))
            self._order()
            self._words[0] = self._written
        return num_written

    def _num_free(self, num_wanted: int) -> int:
        """Tell the bytes that may be overwritten, 0 where they are too few for anything."""
        if self._end_of_room - self._written < _padded(num_wanted):
            reads = self._words[_LINE_WORDS::_LINE_WORDS].tolist()
            self._end_of_room = min(reads) + self._capacity
            self._order()
        num_free = self._end_of_room - self._written
        return num_free if num_free > _WORD_BYTES else 0


class RingReader(_Ring):
    """One of the readers.

    Args:
        memory: The writer's.
        num_readers: As the writer has it.
        index: Which of them this is.
    """

    def __init__(self, memory: memoryview, num_readers: int, *, index: int) -> None:
        super().__init__(memory, num_readers)
        self._position_word = (1 + index) * _LINE_WORDS
        self._read = 0
        self._pieces: list[bytes] = []

    def read(self) -> bytes | None:
        """Return the next message, None while it is not there, or not whole."""
        while self._words[0] != self._read:
            self._order()
            offset = self._read % self._capacity
            num_bytes, has_more = divmod(self._sizes[offset // _WORD_BYTES], 2)
            begin = offset + _WORD_BYTES
            self._pieces.append(bytes(self._data[begin : begin + num_bytes]))
            self._read += _padded(num_bytes)
            self._order()
            self._words[self._position_word] = self._read
            if not has_more:
                message = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
                self._pieces.clear()
                return message
        return None


def _padded(num_bytes: int) -> int:
    """Count a piece with its size, up to where the next one may begin."""
    return _WORD_BYTES + -(-num_bytes // _WORD_BYTES) * _WORD_BYTES
