"""The order of requests that do not run, by hand."""

from scheduler_svc.core.queues import RequestQueues
from scheduler_svc.core.types import Request, RequestStatus
from tests.unit.core_steps import make_request


def _request(request_id: str, arrival: int) -> Request:
    request = make_request(request_id, [1])
    request.arrival = arrival
    return request


def _names(queues: RequestQueues) -> list[str]:
    return [request.request_id for request in queues.requests()]


def test_preempted_requests_go_first_by_arrival_then_waiting_ones() -> None:
    queues = RequestQueues()
    assert queues.peek() is None
    for name, arrival in (("d", 4), ("e", 5)):
        queues.push_waiting(_request(name, arrival))
    for name, arrival in (("c", 3), ("a", 1), ("b", 2)):
        queues.push_preempted(_request(name, arrival))
    assert _names(queues) == ["a", "b", "c", "d", "e"]
    assert (queues.num_waiting, queues.num_preempted) == (2, 3)
    first = queues.peek()
    assert first is not None
    assert (first.request_id, first.status) == ("a", RequestStatus.PREEMPTED)


def test_any_request_can_be_taken_out() -> None:
    queues = RequestQueues()
    waiting, preempted = _request("w", 2), _request("p", 1)
    queues.push_waiting(waiting)
    queues.push_waiting(_request("x", 3))
    queues.push_preempted(preempted)
    queues.remove(waiting)
    assert _names(queues) == ["p", "x"]
    queues.remove(preempted)
    assert _names(queues) == ["x"]
    assert (queues.num_waiting, queues.num_preempted) == (1, 0)
