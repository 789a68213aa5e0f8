"""The whole core under the Hypothesis state machine of core_machine.py."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machines.core_machine import CoreMachine

SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.filter_too_much)


def test_scheduler_machine() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            print_blob=True,
            suppress_health_check=SLOW_IS_FINE,
        ),
    )


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_scheduler_machine_long() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=4_000,
            stateful_step_count=80,
            deadline=None,
            print_blob=True,
            suppress_health_check=SLOW_IS_FINE,
        ),
    )
