"""Which requests' deadlines have passed: a heap with lazy removal.

Knows nothing about clocks (the caller says what time it is) and nothing about what a deadline ends.
"""

import heapq

_MAX_STALE_ENTRIES = 64
"""Stale heap entries tolerated besides as many as there are live ones, before the heap is rebuilt."""


class Deadlines:
    """Deadlines by request id; each is handed out at most once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._deadline_ns_of: dict[str, int] = {}

    def __len__(self) -> int:
        """Tell how many deadlines are live."""
        return len(self._deadline_ns_of)

    @property
    def num_entries(self) -> int:
        """Heap entries, stale ones too."""
        return len(self._heap)

    def add(self, request_id: str, deadline_ns: int) -> None:
        """Remember when ``request_id`` must have ended; it has no deadline yet."""
        assert request_id not in self._deadline_ns_of, f"{request_id!r} has a deadline already"
        self._deadline_ns_of[request_id] = deadline_ns
        heapq.heappush(self._heap, (deadline_ns, request_id))

    def discard(self, request_id: str) -> None:
        """Forget the deadline of ``request_id``, if it has one."""
        self._deadline_ns_of.pop(request_id, None)
        if len(self._heap) > 2 * len(self._deadline_ns_of) + _MAX_STALE_ENTRIES:
            self._heap = [(deadline_ns, key) for key, deadline_ns in self._deadline_ns_of.items()]
            heapq.heapify(self._heap)

    def pop_expired(self, now_ns: int) -> list[str]:
        """Take out the requests whose deadline is at or before ``now_ns``, the earliest first."""
        expired = []
        while (deadline_ns := self.next_ns()) is not None and deadline_ns <= now_ns:
            _, request_id = heapq.heappop(self._heap)
            del self._deadline_ns_of[request_id]
            expired.append(request_id)
        return expired

    def next_ns(self) -> int | None:
        """Tell the earliest live deadline, None without one."""
        while self._heap:
            deadline_ns, request_id = self._heap[0]
            if self._deadline_ns_of.get(request_id) == deadline_ns:
                return deadline_ns
            heapq.heappop(self._heap)
        return None
