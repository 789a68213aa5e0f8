"""Looking up a run of a table's rows: other ids give zeros, and all runs add up to the whole lookup."""

from typing import Any

import pytest
import torch

from kernels.embed_rows import embed_rows, embed_rows_ref
from kernels.row_squares import num_sums, sum_squares_ref
from tests.kernels.conftest import Place

FIRST_ID, NUM_IDS = 40, 18


@pytest.mark.parametrize("size", [1024 + 8, 48])
def test_ids_of_other_runs_and_of_padding_give_zeros(size: int, one_place: Place) -> None:
    generator = torch.Generator().manual_seed(0)
    table_VE = torch.randn(20, size, generator=generator).to(one_place.device, one_place.dtype)
    ids = [39, 40, 57, 58, 59, 60, 0, 50]
    input_ids_T = torch.tensor(ids, dtype=torch.int32, device=one_place.device)
    out_TE = torch.full((len(ids), size), 7.0, dtype=one_place.dtype, device=one_place.device)
    squares_TJ = torch.full((len(ids), num_sums(size)), 7.0, device=one_place.device)
    for squares in (None, squares_TJ):
        embed_rows(input_ids_T, table_VE, out_TE, first_id=FIRST_ID, num_ids=NUM_IDS, squares_TJ=squares)
    torch.testing.assert_close(squares_TJ, sum_squares_ref(out_TE))
    expected = torch.zeros_like(out_TE)
    for token, row in ((1, 0), (2, 17), (7, 10)):
        expected[token] = table_VE[row]
    assert torch.equal(out_TE, expected)
    assert torch.equal(embed_rows_ref(input_ids_T, table_VE, first_id=FIRST_ID, num_ids=NUM_IDS), expected)


def test_what_does_not_fit_is_refused() -> None:
    table_VE, ids_T = torch.zeros(4, 8), torch.zeros(3, dtype=torch.int32)
    options: dict[str, Any] = {"first_id": 0, "num_ids": 4}
    with pytest.raises(ValueError, match="input_ids must be int32"):
        embed_rows(ids_T.long(), table_VE, torch.zeros(3, 8), **options)
    with pytest.raises(ValueError, match=r"out must be torch.float32 of \(3, 8\)"):
        embed_rows(ids_T, table_VE, torch.zeros(3, 9), **options)
    with pytest.raises(ValueError, match="squares must be contiguous float32 of"):
        embed_rows(ids_T, table_VE, torch.zeros(3, 8), **options, squares_TJ=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="of 5 rows or more, but has 4"):
        embed_rows(ids_T, table_VE, torch.zeros(3, 8), first_id=0, num_ids=5)
