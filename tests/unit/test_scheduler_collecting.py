"""Garbage collection of a service's process: rare, and never of what was there from the start."""

import gc

from scheduler_svc.collecting import collect_garbage_rarely


def test_what_lives_at_the_start_is_left_out_and_collections_are_rare() -> None:
    thresholds = gc.get_threshold()
    try:
        collect_garbage_rarely()
        assert gc.get_freeze_count() > 10_000  # the modules, at least
        assert gc.get_threshold() == (20_000, *thresholds[1:])
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
