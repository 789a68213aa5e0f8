"""A step's words, taken in turns: rows, padding, appended blocks, programs, addresses past 32 bits."""

from dataclasses import replace

import pytest
import torch

from kernels.begin_step import StepRows, StepSlots, begin_step, begin_step_ref
from kernels.step_times import INTERPRETED_NS

BLOCK_SIZE, NUM_LANES, NUM_COLUMNS = 16, 300, 4
Tables = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _tables(device: str) -> Tables:
    """Return tokens, the block table and all cells, of which some are spare."""
    generator = torch.Generator().manual_seed(0)
    num_cells = NUM_LANES * NUM_COLUMNS
    pool_LP = torch.randint(0, 150_000, (NUM_LANES, NUM_COLUMNS * BLOCK_SIZE + 1), generator=generator)
    cells_C = torch.randint(0, 900, (num_cells + NUM_COLUMNS,), generator=generator).int().to(device)
    return pool_LP.int().to(device), cells_C[:num_cells].view(NUM_LANES, NUM_COLUMNS), cells_C


def _num_words(num_rows: int) -> int:
    return 6 * (-(-num_rows // 4) * 4) + 4


def _words(
    lanes: list[int], positions: list[int], appends: list[tuple[int, int]], *, address: int = 77
) -> torch.Tensor:
    """Lay a step out; what no part holds is rubbish."""
    num_rows, num_words = len(lanes), _num_words(len(lanes))
    stride = (num_words - 4) // 6
    words_W = torch.full((num_words,), 9, dtype=torch.int32)
    cells, block_ids = zip(*appends, strict=True)
    words_W[: 2 * stride].view(torch.int64)[:num_rows] = torch.tensor(cells)
    for part, numbers in ((2, block_ids), (3, lanes), (4, positions), (5, range(num_rows))):
        words_W[part * stride : part * stride + num_rows] = torch.tensor(list(numbers))
    words_W[-4:] = 0
    words_W[-4:].view(torch.int64)[0] = address
    return words_W


def _rows(num_rows: int, device: str) -> StepRows:
    def rows(dtype: torch.dtype, length: int = num_rows) -> torch.Tensor:
        return torch.full((length,), -77, dtype=dtype, device=device)

    return StepRows(
        words_W=rows(torch.int32, _num_words(num_rows)),
        input_ids_B=rows(torch.int32),
        slot_mapping_B=rows(torch.int64),
        seq_lens_B=rows(torch.int32),
        told_2=torch.zeros(2, dtype=torch.int64, device=device),
    )


def _slots(steps: list[torch.Tensor], device: str) -> StepSlots:
    slots_NW = torch.zeros((len(steps), max(map(len, steps))), dtype=torch.int32)
    for slot, words_W in enumerate(steps):
        slots_NW[slot, : len(words_W)] = words_W
    return StepSlots(slots_NW=slots_NW.to(device), turns_2=torch.zeros(2, dtype=torch.int32, device=device))


def test_rows_and_padding_by_hand(device: str) -> None:
    pool_LP, table_LM, cells_C = tables = _tables(device)
    spare = len(cells_C) - 1
    pool_LP[5, 17], table_LM[5, 1] = 1234, 98
    pool_LP[0, 0], table_LM[0, 0] = 8, 3
    appends = [(spare, 0), (5 * NUM_COLUMNS + 1, 99), (7 * NUM_COLUMNS + 2, 55), (spare, 0)]
    slots, out = _slots([_words([5, -1, 0, -1], [17, 0, 0, -4], appends)], device), _rows(4, device)
    begin_step(slots, *tables, BLOCK_SIZE, out=out)
    assert out.input_ids_B.tolist() == [1234, 0, 8, 0]
    assert out.slot_mapping_B.tolist() == [99 * BLOCK_SIZE + 1, -1, 3 * BLOCK_SIZE, -1]
    assert out.seq_lens_B.tolist() == [18, 0, 1, 0]
    assert out.words_W[12:-4].tolist() == [5, -1, 0, -1, 17, 0, 0, -4, 0, 1, 2, 3]
    assert out.told_2[0] == 77
    assert table_LM[[5, 7], [1, 2]].tolist() == [99, 55]


@pytest.mark.parametrize("num_rows", [1, 5, 40, 150])
def test_any_number_of_rows_and_appended_blocks(device: str, num_rows: int) -> None:
    tables, expected_tables = _tables(device), _tables(device)
    spare = len(tables[2]) - 1
    lanes = [(7 * row) % NUM_LANES if row % 5 != 4 else -1 for row in range(num_rows)]
    positions = [(11 * row) % 64 for row in range(num_rows)]
    # Every other row's own block, backwards, then one of a lane without a row, then spare ones.
    cells = [
        lane * NUM_COLUMNS + position // BLOCK_SIZE
        for lane, position in list(zip(lanes, positions, strict=True))[::-2]
        if lane >= 0
    ]
    cells = (cells + [299 * NUM_COLUMNS + 3] + [spare] * num_rows)[:num_rows]
    words_W = _words(lanes, positions, [(cell, 5000 + at) for at, cell in enumerate(cells)])
    out, expected = _rows(num_rows, device), _rows(num_rows, device)
    begin_step(_slots([words_W], device), *tables, BLOCK_SIZE, out=out)
    begin_step_ref(_slots([words_W], device), *expected_tables, BLOCK_SIZE, out=expected)
    for name in ("input_ids_B", "slot_mapping_B", "seq_lens_B"):
        assert torch.equal(getattr(out, name), getattr(expected, name))
    assert torch.equal(tables[1], expected_tables[1])
    assert out.told_2[0] == expected.told_2[0] == 77
    assert (out.slot_mapping_B >= 5000 * BLOCK_SIZE).any()


@pytest.mark.parametrize("num_rows", [64, 65, 257])
def test_a_rows_own_block_may_be_the_last_one_appended(device: str, num_rows: int) -> None:
    tables = _tables(device)
    appends = [(len(tables[2]) - 1, 0)] * (num_rows - 1) + [(6 * NUM_COLUMNS, 77)]
    words_W, out = (
        _words([6] + [-1] * (num_rows - 1), [2] + [0] * (num_rows - 1), appends),
        _rows(num_rows, device),
    )
    begin_step(_slots([words_W], device), *tables, BLOCK_SIZE, out=out)
    assert out.slot_mapping_B.tolist() == [77 * BLOCK_SIZE + 2] + [-1] * (num_rows - 1)


def test_steps_of_any_size_take_turns(device: str) -> None:
    tables = _tables(device)
    spare = len(tables[2]) - 1
    steps = [_words([3] * size, [0] * size, [(spare, 0)] * size, address=100 + size) for size in (1, 40, 17)]
    slots = _slots(steps, device)
    for size in (1, 40, 17, 1, 40):
        out = _rows(size, device)
        begin_step(slots, *tables, BLOCK_SIZE, out=out)
        assert out.told_2[0] == 100 + size
        assert out.seq_lens_B.tolist() == [1] * size
    assert slots.turns_2.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("address", "kept", "begins"),
    [
        *((77, 0, "now"), (77, -55, "now"), (77, 55, "before")),
        *((0, 0, "never"), (0, 55, "before"), (0, -55, "told nothing")),
    ],
)
def test_a_step_that_is_told_begins_unless_it_has(device: str, address: int, kept: int, begins: str) -> None:
    tables = _tables(device)
    appends = [(len(tables[2]) - 1, 0)] * 40
    out = _rows(40, device)
    out.told_2[1] = kept
    begin_step(
        _slots([_words([3] * 40, [0] * 40, appends, address=address)], device), *tables, BLOCK_SIZE, out=out
    )
    told, begin = out.told_2.tolist()
    assert told == address
    if begins == "now":
        # The interpreter's clock stands still.
        assert begin > 0
        if device == "cpu":
            assert begin == INTERPRETED_NS.value + kept
    else:
        assert begin == {"before": 55, "never": 0, "told nothing": -55}[begins]


def test_slots_past_two_to_the_31_do_not_wrap(device: str) -> None:
    tables = _tables(device)
    appends = [(2 * NUM_COLUMNS, (1 << 31) // BLOCK_SIZE + 1)]
    out = _rows(1, device)
    begin_step(_slots([_words([2], [3], appends)], device), *tables, BLOCK_SIZE, out=out)
    assert out.slot_mapping_B.tolist() == [(1 << 31) + BLOCK_SIZE + 3]


def test_arguments_that_do_not_fit_are_refused() -> None:
    pool_LP, table_LM, cells_C = _tables("cpu")
    slots, out = _slots([torch.zeros(28, dtype=torch.int32)], "cpu"), _rows(2, "cpu")
    wrong = replace(out, slot_mapping_B=out.slot_mapping_B.int())
    short = replace(slots, slots_NW=slots.slots_NW[:, :24].contiguous())
    with pytest.raises(ValueError, match=r"slot_mapping must be torch.int64 of \(2,\)"):
        begin_step(slots, pool_LP, table_LM, cells_C, BLOCK_SIZE, out=wrong)
    with pytest.raises(ValueError, match="the block table must lie at the beginning of the cells"):
        begin_step(slots, pool_LP, table_LM.clone(), cells_C, BLOCK_SIZE, out=out)
    with pytest.raises(ValueError, match="slots must have 28 words or more, in fours, but have 24"):
        begin_step(short, pool_LP, table_LM, cells_C, BLOCK_SIZE, out=out)
