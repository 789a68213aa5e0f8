"""Rows out of a rank's own part and those that others left, against their reference, and flags."""

import pytest
import torch

from kernels.rank_parts import BLOCK, add_parts, add_parts_ref, await_flag

CANARY = 7.0


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("the other kind of device runs this")
    return str(request.param)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_the_references_bit_by_bit(rank: int, dtype: torch.dtype, device: str) -> None:
    shape = (3, BLOCK // 2 + 8)
    # Sums that need rounding only where bfloat16's is the device's.
    numbers = (
        torch.randn(5, *shape)
        if device == "cuda" or dtype is torch.float32
        else torch.randint(-9, 9, (5, *shape)) / 4
    )
    rows_RE, own_RE, *came = numbers.to(device, dtype)
    came_NRE = torch.stack((*came, came[0]))[:2]
    memory = torch.full((rows_RE.numel() + 8,), CANARY, dtype=dtype, device=device)
    sums_RE = memory[:-8].view(shape)
    sums_RE.copy_(rows_RE)
    add_parts(sums_RE, own_RE, came_NRE, rank=rank)
    assert torch.equal(sums_RE, add_parts_ref(rows_RE, own_RE, came_NRE, rank=rank))
    assert memory[-8:].tolist() == [CANARY] * 8


def test_parts_in_larger_memory_are_found(device: str) -> None:
    came_NRE = torch.randn(3, 6, 16, device=device)[:, :4]
    rows_RE, own_RE = torch.randn(2, 4, 16, device=device)
    expected = add_parts_ref(rows_RE, own_RE, came_NRE, rank=3)
    add_parts(rows_RE, own_RE, came_NRE, rank=3)
    assert torch.equal(rows_RE, expected)


def test_a_part_of_another_shape_is_refused(device: str) -> None:
    rows_RE = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match=r"came is torch\.float32 of \(1, 3, 8\), rows of \(2, 8\)"):
        add_parts(rows_RE, rows_RE.clone(), torch.zeros(1, 3, 8, device=device), rank=0)


def test_a_flag_that_is_up_is_taken_down(device: str) -> None:
    flags = torch.ones(3, dtype=torch.int32, device=device)
    await_flag(flags[1:2])
    assert flags.tolist() == [1, 0, 1]
