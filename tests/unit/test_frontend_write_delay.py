"""How long a stream gathers, by the streams that are open and those that were opened lately."""

import pytest

from scheduler_svc.frontend.write_delay import WriteDelay


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_seconds = 100.0

    def __call__(self) -> float:
        return self.now_seconds


@pytest.mark.parametrize(
    ("num_streams", "seconds"),
    [
        (0, 0.0),
        (1, 0.0),
        (32, 0.0),
        (144, 0.010),
        (88, 0.005),
        (256, 0.020),
        (512, 0.040),
        (1024, 0.080),
        (1280, 0.100),
        (5000, 0.100),
    ],
)
def test_the_delay_grows_with_the_open_streams(num_streams: int, seconds: float) -> None:
    assert WriteDelay().seconds(num_streams) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    ("num_streams", "seconds"),
    [(32, 0.0), (88, 0.020), (144, 0.040), (256, 0.080), (320, 0.100), (1000, 0.100)],
)
def test_in_a_burst_of_new_streams_all_gather_for_longer(num_streams: int, seconds: float) -> None:
    assert WriteDelay().seconds(num_streams, is_burst=True) == pytest.approx(seconds, abs=1e-12)


def test_streams_opened_within_a_second_count_though_few_are_open_at_a_time() -> None:
    clock = Clock()
    delay = WriteDelay(clock)
    for _ in range(144):
        delay.note_new_stream()
    assert delay.seconds(1) == pytest.approx(0.010)
    assert delay.seconds(200) == pytest.approx(0.015)
    clock.now_seconds = 101.5  # half of the second before still counts
    assert delay.seconds(1) == pytest.approx(0.020 * (72 - 32) / 224)
    clock.now_seconds = 102.0
    assert delay.seconds(1) == 0.0


def test_a_burst_is_forgotten_after_a_pause() -> None:
    clock = Clock()
    delay = WriteDelay(clock)
    for _ in range(1000):
        delay.note_new_stream()
    clock.now_seconds = 107.25
    assert delay.seconds(1) == 0.0
