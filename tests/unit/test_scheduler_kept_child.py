"""A child that dies is started again: at once after a good life, ever later after short ones."""

from typing import Any

import pytest

from scheduler_svc.kept_child import KeptChild


class FakeChild:
    """A child process that dies when a test says so."""

    def __init__(self) -> None:
        self.has_ended = False

    def is_dead(self) -> bool:
        """Tell whether a test let it die."""
        return self.has_ended


def kept_fake() -> tuple[KeptChild, list[FakeChild]]:
    """Make a kept child, and the list of all processes that it starts."""
    started: list[FakeChild] = []

    def start() -> Any:
        started.append(FakeChild())
        return started[-1]

    return KeptChild(start, now_seconds=0.0), started


def test_delays_double_up_to_a_limit_while_lives_are_short() -> None:
    kept, started = kept_fake()
    now_seconds, delays = 0.0, []
    for _ in range(8):
        started[-1].has_ended = True
        delays.append(kept.bury(now_seconds))
        now_seconds += delays[-1]
        kept.start_if_due(now_seconds)
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(started) == 9


def test_after_a_good_life_the_next_start_is_at_once() -> None:
    kept, started = kept_fake()
    for now_seconds in (1.0, 2.0):
        started[-1].has_ended = True
        kept.bury(now_seconds)
        kept.start_if_due(now_seconds + 1.0)
    started[-1].has_ended = True
    assert kept.bury(63.0) == 0.0


def test_a_death_is_told_once_and_nothing_starts_before_its_time() -> None:
    kept, started = kept_fake()
    assert not kept.has_died()
    started[0].has_ended = True
    assert kept.has_died()
    kept.bury(1.0)
    assert not kept.has_died()
    kept.start_if_due(1.0)
    started[1].has_ended = True
    kept.bury(2.0)
    kept.start_if_due(2.999)
    assert len(started) == 2
    assert kept.restart_seconds == pytest.approx(3.0)
    kept.start_if_due(3.0)
    assert len(started) == 3
    assert not kept.has_died()
