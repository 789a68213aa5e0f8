"""How often a service may be started again."""

from stepwire_cli.restarts import RestartBudget


def test_five_restarts_a_minute_and_no_more() -> None:
    budget = RestartBudget()
    assert [budget.take(float(second)) for second in range(6)] == [1, 2, 3, 4, 5, None]
    assert budget.take(59.9) is None
    assert budget.take(60.0) == 5
    assert budget.take(60.5) is None
    assert budget.take(1000.0) == 1
