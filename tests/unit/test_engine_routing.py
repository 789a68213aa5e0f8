"""Which worker group a request goes to, by hand."""

import pytest

from scheduler_svc.engine.routing import Candidate, choose_group


def _candidates(*rows: tuple[int, int, int]) -> list[Candidate]:
    """Make candidates of (cached tokens, requests, lanes)."""
    return [
        Candidate(group=index, num_cached_tokens=cached, num_requests=requests, max_num_seqs=lanes)
        for index, (cached, requests, lanes) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        # Nothing to tell them apart: the first.
        ([(0, 0, 4), (0, 0, 4)], 0),
        # The least loaded, for each of its lanes.
        ([(0, 2, 4), (0, 1, 4)], 1),
        ([(0, 2, 8), (0, 1, 2)], 0),
        ([(0, 1, 4), (0, 2, 8)], 0),
        # The most cached, though it has more to do.
        ([(0, 0, 4), (16, 3, 4)], 1),
        ([(32, 3, 4), (16, 0, 4), (48, 3, 4)], 2),
        # As much cached: the least loaded of them.
        ([(16, 3, 4), (16, 2, 4), (0, 0, 4)], 1),
        # No lane is left where it is cached.
        ([(16, 4, 4), (0, 3, 4)], 1),
        # No lane is left anywhere.
        ([(0, 5, 4), (16, 9, 4)], 1),
        ([(0, 9, 4), (0, 8, 4)], 1),
    ],
)
def test_cached_then_least_loaded_then_first(rows: list[tuple[int, int, int]], chosen: int) -> None:
    assert choose_group(_candidates(*rows)) == chosen


def test_the_number_is_the_candidates_own() -> None:
    assert choose_group(_candidates((0, 0, 4), (0, 9, 4), (0, 3, 4))[1:]) == 2
