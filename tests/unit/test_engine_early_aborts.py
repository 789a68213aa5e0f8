"""Aborts that reach the engine before their requests."""

from scheduler_svc.engine.early_aborts import KEPT_NS, EarlyAborts


def test_an_abort_means_what_was_asked_for_before_it() -> None:
    aborts = EarlyAborts()
    assert not aborts.has_aborted("r", 5)
    aborts.note("r", 10)
    assert [aborts.has_aborted("r", asked_ns) for asked_ns in (9, 10, 11)] == [True, False, False]
    assert not aborts.has_aborted("s", 9)
    aborts.note("r", 20)
    assert [aborts.has_aborted("r", asked_ns) for asked_ns in (19, 21)] == [True, False]


def test_aborts_of_long_ago_are_forgotten() -> None:
    aborts = EarlyAborts()
    for asked_ns, request_id in enumerate(("a", "b", "c"), 1):
        aborts.note(request_id, asked_ns)
    aborts.note("a", 4)
    aborts.note("d", 2 + KEPT_NS)
    assert [aborts.has_aborted(request_id, 0) for request_id in "abcd"] == [True, False, True, True]
