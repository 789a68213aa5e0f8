"""Remembers aborts for a while: one may reach the engine before the request that it means; pure.

A front end has a request wait in a burst, and reads its prompt, while another one passes the abort on at
once. Which of the two the client asked first, their times tell. Knows nothing about what requests do.
"""

KEPT_NS = 10_000_000_000
"""Longer than a request is on its way; how long the engine remembers an abort."""


class EarlyAborts:
    """The aborts of the last seconds."""

    def __init__(self) -> None:
        self._asked_ns: dict[str, int] = {}
        """When each id was aborted last, the latest at the end."""

    def note(self, request_id: str, asked_ns: int) -> None:
        """Remember an abort, and forget those of long ago."""
        self._asked_ns.pop(request_id, None)
        self._asked_ns[request_id] = asked_ns
        while (oldest := next(iter(self._asked_ns))) != request_id:
            if self._asked_ns[oldest] > asked_ns - KEPT_NS:
                break
            del self._asked_ns[oldest]

    def has_aborted(self, request_id: str, asked_ns: int) -> bool:
        """Tell whether a request that was asked for then was aborted afterwards."""
        return asked_ns < self._asked_ns.get(request_id, 0)
