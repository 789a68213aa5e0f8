"""Which rank has been silent for too long, worked out by hand."""

from worker_svc.tp.silence import SilenceWatch


def test_a_rank_is_silent_once_its_beats_stand_still_for_longer_than_the_limit() -> None:
    watch = SilenceWatch(limit_seconds=2.0, look_seconds=1.0)
    looks = [((0, 0), 10.0), ((1, 1), 11.0), ((2, 1), 12.0), ((3, 1), 13.0), ((4, 1), 13.5)]
    assert [watch.look(beats, now) for beats, now in looks] == [None, None, None, None, 1]


def test_a_beat_ends_the_silence() -> None:
    watch = SilenceWatch(limit_seconds=2.0, look_seconds=1.0)
    looks = [((5,), 0.0), ((5,), 1.9), ((6,), 3.0), ((6,), 4.9), ((6,), 5.1)]
    assert [watch.look(beats, now) for beats, now in looks] == [None, None, None, None, 0]


def test_time_in_which_the_watch_itself_stood_still_counts_as_two_looks() -> None:
    watch = SilenceWatch(limit_seconds=3.0, look_seconds=1.0)
    looks = [((5,), 0.0), ((5,), 1.0), ((5,), 1000.0), ((5,), 1001.0)]
    assert [watch.look(beats, now) for beats, now in looks] == [None, None, None, 0]
