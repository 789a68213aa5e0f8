"""A rank of a test that takes long tells where it stands, though nothing ends it and nobody asks."""

import subprocess
import sys

WAITING_RANK = """
import threading
from tests.rank_progress import RankProgress
progress = RankProgress(1, trace_seconds=0.1)
progress.tell("waits")
threading.Event().wait()
"""


def test_one_that_waits_tells_where() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_RANK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stderr is not None
        try:
            told = rank.stdout.readline()
            traced = next((line for line in rank.stderr if "in wait" in line), "")
        finally:
            rank.kill()
    assert told.startswith("rank 1, ")
    assert told.endswith(" s: waits\n")
    assert "threading.py" in traced
