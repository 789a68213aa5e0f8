"""Projections of many tiles a program against plain products: tiles cut off, rows, what is refused."""

import pytest
import torch

from kernels.streamed_projection import (
    StreamedTile,
    can_stream,
    choose_streamed_tile,
    streamed_projection,
    streamed_projection_ref,
)
from tests.kernels.conftest import Place


@pytest.fixture
def half_place(place: Place) -> Place:
    """Return places of two-byte numbers that the interpreter computes right."""
    if place.dtype == torch.float32 or (place.device == "cpu" and place.dtype == torch.bfloat16):
        pytest.skip("two bytes a number, and no bfloat16 where kernels are interpreted")
    return place


def _tile(block_rows: int) -> StreamedTile:
    return StreamedTile(block_rows=block_rows, block_outputs=64, block_inputs=64, num_stages=3, num_ahead=64)


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_outputs"), [(1, 64, 128), (3, 96, 500), (16, 128, 1000), (17, 200, 72)]
)
def test_products_of_any_shape(num_rows: int, num_inputs: int, num_outputs: int, half_place: Place) -> None:
    generator = torch.Generator().manual_seed(0)
    x_RI, weight_OI = (
        torch.randn(size, num_inputs, generator=generator).to(half_place.device, half_place.dtype)
        for size in (num_rows, num_outputs)
    )
    expected_RO = streamed_projection_ref(x_RI, weight_OI)
    for tile in (None, _tile(32)):
        # Memory behind the last output and row stays as it is.
        out_RO = x_RI.new_full((num_rows + 1, num_outputs + 1), 7)
        streamed_projection(x_RI, weight_OI, out_RO[:-1, :-1], tile=tile)
        torch.testing.assert_close(out_RO[:-1, :-1].float(), expected_RO, rtol=1e-2, atol=2e-2)
        assert (out_RO[-1] == 7).all()
        assert (out_RO[:, -1] == 7).all()


def test_a_row_is_the_same_alone(half_place: Place) -> None:
    generator = torch.Generator().manual_seed(1)
    x_RI, weight_OI = (
        torch.randn(size, 128, generator=generator).to(half_place.device, half_place.dtype)
        for size in (9, 300)
    )
    together_RO = streamed_projection(x_RI, weight_OI, tile=_tile(16))
    for row in (0, 8):
        assert torch.equal(
            streamed_projection(x_RI[row : row + 1], weight_OI, tile=_tile(16))[0], together_RO[row]
        )


def test_tiles_give_programs_about_as_many() -> None:
    # Qwen3's vocabulary, and a half of it, on an H200: 1,187 tiles of 132 programs in both.
    for num_outputs, block_outputs in ((151936, 128), (75968, 64)):
        tile = choose_streamed_tile(5, num_outputs, num_programs=132)
        assert (tile.block_rows, tile.block_outputs) == (16, block_outputs)


def test_what_does_not_fit_is_refused() -> None:
    x_RI, weight_OI = torch.zeros(65, 64).half(), torch.zeros(10, 64).half()
    with pytest.raises(ValueError, match="at most 64 rows of numbers of 2 bytes"):
        streamed_projection(x_RI, weight_OI)
    with pytest.raises(ValueError, match="aligned to 16, are streamed"):
        streamed_projection(x_RI[:4, 1:57], weight_OI[:, :56].contiguous())
    assert not can_stream(weight_OI.float())
    assert not can_stream(weight_OI[:, 1:])
