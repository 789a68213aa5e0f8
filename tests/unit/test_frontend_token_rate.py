"""Tokens a second, from a count looked at now and then."""

from scheduler_svc.frontend.token_rate import TokenRate


def test_the_rate_is_that_between_the_last_two_looks() -> None:
    rate = TokenRate()
    assert rate.update(2.0, 100) == 50
    assert rate.update(4.0, 130) == 15
    assert rate.update(5.0, 130) == 0


def test_looks_that_come_too_close_see_the_rate_of_before() -> None:
    rate = TokenRate()
    assert [rate.update(2.0, 100), rate.update(2.5, 900), rate.update(2.9, 990)] == [50, 50, 50]
    assert rate.update(4.0, 1000) == 450


def test_a_count_that_began_anew_is_no_negative_rate() -> None:
    rate = TokenRate()
    rate.update(100.0, 5000)
    assert rate.update(2.0, 30) == 15
