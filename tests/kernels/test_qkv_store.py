"""Projection, norms, RoPE and KV store in one launch: against its reference, and what it leaves alone."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from kernels.qkv_rows import QkvRows
from kernels.qkv_store import choose_qkv_tile, qkv_store, qkv_store_ref
from kernels.row_squares import sum_squares_ref
from kernels.tiled_config import ProjectionTile

EPS = 1e-6
CANARY = 7.0
NUM_POSITIONS = 100
SLOTS = [79, -1, 0, 31, -1000, 5, *range(40, 54)]
TILE = ProjectionTile(block_rows=16, block_outputs=16, block_inputs=32, num_stages=2, is_tma=False)
TILES = [
    pytest.param(TILE, 100, id="plain"),
    pytest.param(replace(TILE, is_swapped=True), 100, id="swapped"),
    pytest.param(replace(TILE, is_tma=True), 64, id="tma"),
    pytest.param(replace(TILE, is_tma=True, is_swapped=True, block_rows=32), 64, id="tma-swapped"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of a launch; caches and queries are full of canaries."""

    x_RI: torch.Tensor
    weight_OI: torch.Tensor
    bias_O: torch.Tensor
    rows: QkvRows
    caches: torch.Tensor

    def run(self, tile: ProjectionTile, *, has_bias: bool = True) -> torch.Tensor:
        return qkv_store(
            self.x_RI,
            self.weight_OI,
            EPS,
            self.rows,
            *self.caches,
            squares_RJ=sum_squares_ref(self.x_RI),
            tile=tile,
            bias_O=self.bias_O if has_bias else None,
        )


def _case(
    place: Any, num_inputs: int, *, heads: tuple[int, int] = (4, 2), head_dim: int = 16, has_norm: bool = True
) -> Case:
    generator = torch.Generator().manual_seed(num_inputs)
    (num_heads, num_kv_heads), num_rows = heads, len(SLOTS)
    num_outputs = (num_heads + 2 * num_kv_heads) * head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(place.device, place.dtype)

    norms = 1 + 0.2 * random(2, head_dim)
    angles = torch.randn(NUM_POSITIONS, head_dim // 2, generator=generator)
    positions = torch.randint(0, NUM_POSITIONS, (num_rows,), generator=generator, dtype=torch.int32)
    positions[1] = -1
    return Case(
        x_RI=random(num_rows, num_inputs),
        weight_OI=random(num_outputs, num_inputs) * num_inputs**-0.5,
        bias_O=random(num_outputs),
        rows=QkvRows(
            qkv_TX=torch.full((num_rows, num_outputs), CANARY).to(place.device, place.dtype),
            positions_T=positions.to(place.device),
            slot_mapping_T=torch.tensor(SLOTS, device=place.device),
            cos_sin_PD=torch.cat((angles.cos(), angles.sin()), 1).to(place.device),
            q_norm_D=norms[0] if has_norm else None,
            k_norm_D=norms[1] if has_norm else None,
            eps=EPS,
            q_THD=torch.full((num_rows, num_heads, head_dim), CANARY).to(place.device, place.dtype),
        ),
        caches=torch.full((2, 5, 16, num_kv_heads, head_dim), CANARY).to(place.device, place.dtype),
    )


def _check(place: Any, case: Case, tile: ProjectionTile, *, has_bias: bool = True) -> None:
    expected_caches = case.caches.clone()
    expected = qkv_store_ref(
        case.x_RI, case.weight_OI, EPS, case.rows, *expected_caches, bias_O=case.bias_O if has_bias else None
    )
    out = case.run(tile, has_bias=has_bias)
    assert out is case.rows.q_THD
    close = {"rtol": 2 * place.tolerance, "atol": 2 * place.tolerance}
    torch.testing.assert_close(out, expected, **close)
    torch.testing.assert_close(case.caches, expected_caches, **close)
    # Cells that nobody writes keep their canary, and so do the rows that another kernel would have read.
    assert torch.equal(case.caches == CANARY, expected_caches == CANARY)
    assert (case.rows.qkv_TX == CANARY).all()


@pytest.mark.parametrize(("tile", "num_inputs"), TILES)
def test_every_kind_of_tile(place: Any, tile: ProjectionTile, num_inputs: int) -> None:
    _check(place, _case(place, num_inputs), tile)


@pytest.mark.parametrize("heads", [(1, 1), (9, 3)])
def test_groups_without_norms_and_bias(place: Any, heads: tuple[int, int]) -> None:
    _check(place, _case(place, 64, heads=heads, has_norm=False), TILE, has_bias=False)


def test_a_tile_holds_one_head(place: Any) -> None:
    _check(place, _case(place, 64, head_dim=32), replace(TILE, block_outputs=32))
    with pytest.raises(ValueError, match="holds no head of 16"):
        _case(place, 64).run(replace(TILE, block_outputs=32))
    with pytest.raises(ValueError, match="2 splits, holds no head"):
        _case(place, 64).run(replace(TILE, num_splits=2))


def test_rows_do_not_depend_on_their_neighbours(place: Any) -> None:
    case = _case(place, 64)
    out = case.run(TILE).clone()
    case.x_RI[:7] = 0
    case.x_RI[8:] = CANARY
    assert torch.equal(case.run(TILE)[7], out[7])


def test_tiles_where_they_pay() -> None:
    sizes = {"num_all_heads": 32, "head_dim": 128, "itemsize_bytes": 2}
    tiles = {num_rows: choose_qkv_tile(num_rows, **sizes) for num_rows in (32, 33, 48, 64, 128, 256, 257)}
    assert [num_rows for num_rows, tile in tiles.items() if tile is None] == [32, 257]
    assert all(tile is None or tile.block_outputs == 128 for tile in tiles.values())
    # Too few programs, a head that no tile holds, numbers that tensor cores round.
    assert choose_qkv_tile(256, **{**sizes, "num_all_heads": 16}) is None
    assert choose_qkv_tile(256, **{**sizes, "head_dim": 80}) is None
    assert choose_qkv_tile(256, **{**sizes, "itemsize_bytes": 4}) is None
