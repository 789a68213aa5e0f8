"""The length of leases, by numbers worked out by hand, and the running means that it comes from."""

import pytest

from scheduler_svc.engine.pace import WorkerPace, lease_length


@pytest.mark.parametrize(
    ("step_ms", "round_trip_ms", "num_credits", "expected"),
    [
        (0.0, 10.0, 2, 1),  # nothing was measured
        (4.0, 0.0, 2, 1),
        (4.0, 0.5, 2, 1),  # a link of one machine
        (2.0, 0.5, 2, 1),
        (2.0, 0.6, 2, 2),
        (0.6, 0.5, 2, 4),
        (4.0, 10.0, 2, 10),  # 5 ms each way: four times 10 ms are ten steps
        (4.0, 10.0, 3, 5),
        (4.0, 10.0, 4, 4),
        (4.0, 10.0, 1, 16),  # 83 would lose 3 %
        (40.0, 1.0, 1, 1),
        (40.0, 2.0, 1, 2),
        (0.5, 10.0, 2, 16),
        (60.0, 10.0, 2, 1),  # a CPU far away
    ],
)
def test_a_lease_is_as_long_as_the_round_trip_asks_for(
    step_ms: float, round_trip_ms: float, num_credits: int, expected: int
) -> None:
    found = lease_length(step_ms / 1e3, round_trip_ms / 1e3, num_credits=num_credits, most=16)
    assert found == expected


def test_no_lease_is_longer_than_allowed() -> None:
    assert lease_length(0.004, 10.0, num_credits=2, most=1) == 1
    assert lease_length(0.004, 10.0, num_credits=2, most=7) == 7


def test_means_begin_with_the_first_measurement() -> None:
    pace = WorkerPace()
    pace.note_result(busy_seconds=0.020, idle_seconds=0.0, num_decodes=4)
    assert pace.decode_seconds == pytest.approx(0.005)
    pace.note_result(busy_seconds=0.013, idle_seconds=0.0, num_decodes=1)
    assert pace.decode_seconds == pytest.approx(0.006)
    pace.note_round_trip(0.010)
    pace.note_round_trip(0.002)
    assert pace.round_trip_seconds == pytest.approx(0.009)


def test_prompts_and_empty_results_say_nothing_of_decodes() -> None:
    pace = WorkerPace()
    pace.note_result(busy_seconds=0.5, idle_seconds=0.0, num_decodes=0)
    pace.note_result(busy_seconds=0.0, idle_seconds=0.0, num_decodes=0)
    assert pace.decode_seconds == 0.0


def test_the_idle_ratio_is_a_share_of_the_devices_time() -> None:
    pace = WorkerPace()
    for _ in range(200):
        pace.note_result(busy_seconds=0.003, idle_seconds=0.001, num_decodes=1)
    assert pace.idle_ratio == pytest.approx(0.25)
    for _ in range(200):
        pace.note_result(busy_seconds=0.5, idle_seconds=0.0, num_decodes=0)
    assert pace.idle_ratio == pytest.approx(0.0, abs=1e-9)


def test_a_round_trip_is_never_negative() -> None:
    pace = WorkerPace()
    pace.note_round_trip(-0.001)
    assert pace.round_trip_seconds == 0.0
