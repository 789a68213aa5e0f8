"""Lane and position to input id and slot: padding, several programs, addresses past 32 bits."""

from typing import Any

import pytest
import torch

from kernels.prepare import prepare_tokens, prepare_tokens_ref

BLOCK_SIZE = 16


def _tables(device: str, num_lanes: int = 300, num_blocks: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pool_LP = torch.randint(0, 150_000, (num_lanes, num_blocks * BLOCK_SIZE + 1), generator=generator)
    table_LM = torch.randperm(num_lanes * num_blocks, generator=generator).view(num_lanes, num_blocks)
    return pool_LP.int().to(device), table_LM.int().to(device)


def _run(
    lanes: list[int], positions: list[int], pool_LP: torch.Tensor, table_LM: torch.Tensor
) -> list[torch.Tensor]:
    lanes_T, positions_T = torch.tensor([lanes, positions], dtype=torch.int32, device=pool_LP.device)
    outs = [torch.full_like(lanes_T, -77), torch.full_like(lanes_T, -77).long()]
    prepare_tokens(lanes_T, positions_T, pool_LP, table_LM, BLOCK_SIZE, *outs)
    expected = prepare_tokens_ref(lanes_T, positions_T, pool_LP, table_LM, BLOCK_SIZE)
    for out, reference in zip(outs, expected, strict=True):
        assert torch.equal(out.long(), reference.long())
    return outs


@pytest.fixture
def device(place: Any) -> str:
    """Return this machine's device once: nothing here has a float dtype."""
    if place.dtype != torch.float32:
        pytest.skip("integers only")
    name: str = place.device
    return name


def test_tokens_and_padding_by_hand(device: str) -> None:
    pool_LP, table_LM = _tables(device)
    pool_LP[5, 17], table_LM[5, 1] = 1234, 99
    pool_LP[0, 0], table_LM[0, 0] = 8, 3
    ids_T, slots_T = _run([5, -1, 0, -1], [17, 0, 0, -4], pool_LP, table_LM)
    assert ids_T.tolist() == [1234, 0, 8, 0]
    assert slots_T.tolist() == [99 * BLOCK_SIZE + 1, -1, 3 * BLOCK_SIZE, -1]


@pytest.mark.parametrize("num_tokens", [1, 127, 129, 300])
def test_any_number_of_tokens(device: str, num_tokens: int) -> None:
    pool_LP, table_LM = _tables(device)
    lanes = [(7 * index) % 300 if index % 5 else -1 for index in range(num_tokens)]
    _run(lanes, [(11 * index) % 64 for index in range(num_tokens)], pool_LP, table_LM)


def test_slots_past_two_to_the_31_do_not_wrap(device: str) -> None:
    pool_LP, table_LM = _tables(device)
    table_LM[2, 0] = (1 << 31) // BLOCK_SIZE + 1
    _, slots_T = _run([2], [3], pool_LP, table_LM)
    assert slots_T.tolist() == [(1 << 31) + BLOCK_SIZE + 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lanes", "lanes must be torch.int32"),
        ("slots", r"slot_mapping must be torch.int64 of \(2,\)"),
        ("pool", "token_pool must be int32 of two dimensions"),
        ("tables", "token_pool has 300 lanes, block_table 299"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: str, message: str) -> None:
    pool_LP, table_LM = _tables("cpu")
    lanes, positions, ids = torch.zeros(3, 2, dtype=torch.int32)
    slots = torch.zeros(2, dtype=torch.int64)
    if change == "lanes":
        lanes = lanes.long()
    elif change == "slots":
        slots = slots.int()
    elif change == "pool":
        pool_LP = pool_LP.long()
    else:
        table_LM = table_LM[1:]
    with pytest.raises(ValueError, match=message):
        prepare_tokens(lanes, positions, pool_LP, table_LM, BLOCK_SIZE, ids, slots)
