"""When requests are told that they wait for a worker: at once, every ten seconds, and at the end."""

from scheduler_svc.engine.values import LiveStatus
from scheduler_svc.engine.waits import Waits

_S = 10**9


def test_a_wait_is_told_again_until_it_is_over() -> None:
    waits = Waits()
    assert waits.take_due(0, is_serving=True) is None
    assert waits.next_ns is None
    assert waits.take_due(5 * _S, is_serving=False) is LiveStatus.WAITING_FOR_WORKER
    assert waits.next_ns == 15 * _S
    assert waits.take_due(15 * _S - 1, is_serving=False) is None
    assert waits.take_due(15 * _S, is_serving=False) is LiveStatus.WAITING_FOR_WORKER
    assert waits.next_ns == 25 * _S
    assert waits.take_due(16 * _S, is_serving=True) is LiveStatus.RUNNING
    assert waits.next_ns is None
    assert waits.take_due(17 * _S, is_serving=True) is None
