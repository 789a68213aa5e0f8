"""Deadlines: order, lazy removal, ids that come again, and that stale entries do not pile up."""

from scheduler_svc.engine.deadlines import Deadlines


def test_expired_deadlines_come_out_once_and_earliest_first() -> None:
    deadlines = Deadlines()
    for request_id, deadline_ns in (("c", 30), ("a", 10), ("b", 20), ("d", 40)):
        deadlines.add(request_id, deadline_ns)
    assert deadlines.next_ns() == 10
    assert deadlines.pop_expired(9) == []
    assert deadlines.pop_expired(30) == ["a", "b", "c"]
    assert deadlines.pop_expired(30) == []
    assert (deadlines.next_ns(), len(deadlines)) == (40, 1)


def test_a_discarded_deadline_does_not_come_out() -> None:
    deadlines = Deadlines()
    deadlines.add("a", 10)
    deadlines.add("b", 20)
    deadlines.discard("a")
    deadlines.discard("a")
    deadlines.discard("never there")
    assert deadlines.next_ns() == 20
    assert deadlines.pop_expired(100) == ["b"]
    assert deadlines.next_ns() is None


def test_an_id_that_comes_again_has_its_new_deadline_only() -> None:
    deadlines = Deadlines()
    for deadline_ns in (10, 30, 20, 20):
        deadlines.discard("a")
        deadlines.add("a", deadline_ns)
    assert deadlines.pop_expired(19) == []
    assert deadlines.pop_expired(20) == ["a"]
    assert deadlines.pop_expired(100) == []
    assert deadlines.next_ns() is None


def test_stale_entries_do_not_pile_up() -> None:
    deadlines = Deadlines()
    deadlines.add("stays", 10**9)
    for number in range(10_000):
        deadlines.add(f"goes-{number}", 10**12 + number)
        deadlines.discard(f"goes-{number}")
        assert deadlines.num_entries <= 2 + 64 + 1
    assert deadlines.pop_expired(10**15) == ["stays"]
    assert deadlines.num_entries == 0
