"""Which steps are cut between ranks, and in which order a rank computes their rows."""

import pytest
import torch

from model import row_cut
from model.cut_residual import ALL_ROWS, CutResidual
from model.ranks import OneRank
from model.row_cut import LEAST_BYTES, LEAST_ROWS, UNIT, cut_rows, most_rows_of_one

ROW_BYTES = -(-LEAST_BYTES // LEAST_ROWS)


class ToldRows:
    """Tells what is asked of it."""

    rows_TE = torch.zeros(12, 1)

    def __init__(self) -> None:
        self.told: list[str] = []

    def leave(self, part_RE: torch.Tensor, *, owner: int) -> None:
        self.told.append(f"{len(part_RE)} rows to {owner}")

    def add(self, part_RE: torch.Tensor, rows: slice) -> None:
        self.told.append(f"{len(part_RE)} parts to rows {rows.start} to {rows.stop}")

    def await_sums(self, owner: int) -> None:
        self.told.append(f"awaits {owner}")


def make_part(rows: slice) -> torch.Tensor:
    return torch.zeros(rows.stop - rows.start, 1)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("num_rows", [LEAST_ROWS, LEAST_ROWS + 1, LEAST_ROWS + 5 * UNIT + 7, 2 * LEAST_ROWS])
def test_rows_of_all_ranks_are_all_rows(num_rows: int, num_ranks: int) -> None:
    cut = cut_rows(num_rows, ROW_BYTES, num_ranks=num_ranks)
    assert [rows.start for rows in cut] == [0, *(rows.stop for rows in cut[:-1])]
    assert cut[-1].stop == num_rows
    sizes = [rows.stop - rows.start for rows in cut]
    assert max(sizes) <= most_rows_of_one(num_rows, num_ranks) < num_rows / num_ranks + UNIT
    assert all(size > 0 and size % UNIT == 0 for size in sizes[:-1])


def test_small_steps_and_those_of_one_rank_stay_whole() -> None:
    assert cut_rows(LEAST_ROWS - 1, ROW_BYTES, num_ranks=2) == ()
    assert cut_rows(LEAST_ROWS, ROW_BYTES - 1, num_ranks=2) == ()
    assert cut_rows(LEAST_ROWS, ROW_BYTES, num_ranks=1) == ()
    assert CutResidual.of(None, LEAST_ROWS, OneRank()) is None


def test_others_rows_leave_first_and_come_last() -> None:
    shared = ToldRows()
    residual = CutResidual(shared, (slice(0, 4), slice(4, 8), slice(8, 11)), rank=1)
    assert list(residual.arriving()) == [ALL_ROWS]
    residual.add(make_part)
    assert shared.told == ["3 rows to 2", "4 rows to 0", "4 parts to rows 4 to 8"]
    seen = []
    for rows in residual.arriving():
        shared.told.append("computes")
        seen.append(rows)
    assert seen == [slice(4, 8), slice(8, 11), slice(0, 4)]
    assert shared.told[3:] == ["computes", "awaits 2", "computes", "awaits 0", "computes"]
    assert list(residual.arriving()) == [ALL_ROWS]


def test_rows_that_nobody_awaited_take_no_parts() -> None:
    residual = CutResidual(ToldRows(), (slice(0, 4), slice(4, 8)), rank=0)
    residual.add(make_part)
    with pytest.raises(AssertionError, match="nobody has waited"):
        residual.add(make_part)


def test_a_step_is_cut_by_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cut, "LEAST_ROWS", 8)
    monkeypatch.setattr(row_cut, "LEAST_BYTES", 1)
    monkeypatch.setattr(row_cut, "UNIT", 1)

    class TwoRanks(OneRank):
        size = 2

    shared = ToldRows()
    assert CutResidual.of(shared, 7, TwoRanks()) is None
    residual = CutResidual.of(shared, 9, TwoRanks())
    assert residual is not None
    residual.add(make_part)
    assert shared.told == ["4 rows to 1", "5 parts to rows 0 to 5"]
