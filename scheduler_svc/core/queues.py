"""The requests that do not run: waiting ones in order of arrival, preempted ones before them.

Every operation that the engine calls once a request is constant in the number of waiting requests.
Knows nothing about lanes, blocks or steps.
"""

from bisect import insort
from collections import OrderedDict

from scheduler_svc.core.types import Request, RequestStatus


def _by_arrival(request: Request) -> int:
    return request.arrival


class RequestQueues:
    """Waiting and preempted requests."""

    def __init__(self) -> None:
        # Ordered by hand: taking the first of a plain dict again and again is quadratic.
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._preempted: list[Request] = []

    @property
    def num_waiting(self) -> int:
        """Requests that never ran."""
        return len(self._waiting)

    @property
    def num_preempted(self) -> int:
        """Requests that ran and wait to run again."""
        return len(self._preempted)

    def push_waiting(self, request: Request) -> None:
        """Queue a new request behind all others."""
        request.status = RequestStatus.WAITING
        self._waiting[request.request_id] = request

    def push_preempted(self, request: Request) -> None:
        """Queue a request that ran, by its arrival among those that ran."""
        request.status = RequestStatus.PREEMPTED
        insort(self._preempted, request, key=_by_arrival)

    def peek(self) -> Request | None:
        """Give the request that is to run next."""
        if self._preempted:
            return self._preempted[0]
        return next(iter(self._waiting.values()), None)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        if request.status is RequestStatus.PREEMPTED:
            self._preempted.remove(request)
        else:
            del self._waiting[request.request_id]

    def requests(self) -> list[Request]:
        """All queued requests, those to run next first."""
        return [*self._preempted, *self._waiting.values()]
