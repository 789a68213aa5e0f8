"""Rows behind: whole blocks where the memory holds them, never more, strided or not."""

import pytest
import torch

from kernels.rows_behind import with_rows_behind


@pytest.mark.parametrize(("num_rows", "expected"), [(1, 16), (16, 16), (17, 32), (65, 70), (70, 70)])
def test_whole_blocks_where_the_memory_holds_them(num_rows: int, expected: int) -> None:
    memory = torch.arange(70.0 * 3 * 8).view(70, 3, 8)
    for column in range(3):
        rows = memory[:num_rows, column]
        assert torch.equal(with_rows_behind(rows, 16), memory[:expected, column])


def test_rows_without_memory_behind_stay() -> None:
    rows = torch.randn(3, 8)
    assert torch.equal(with_rows_behind(rows, 16), rows)
    assert with_rows_behind(rows[:1].expand(5, 8), 16).shape == (5, 8)
