"""QKV projections with heads on Hopper: emulated on a CPU, and on such a GPU against the reference."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from kernels import hopper_heads_kernel, hopper_projection_kernel, large_product, large_qkv_kernel
from kernels.gpu import BARRIER_BYTES, HOPPER_SHARED_BYTES
from kernels.hopper_heads import head_constants
from kernels.hopper_tiles import MOST_ROWS, HopperTile, choose_head_tile, choose_hopper_tile
from kernels.qkv_rows import QkvRows
from kernels.qkv_store import choose_qkv_tile, qkv_store, qkv_store_ref
from kernels.row_squares import sum_squares_ref
from tests.kernels.emulated_gluon import Descriptor, Pointer, run_emulated
from tests.kernels.test_hopper_projection import shared_bytes_of

EPS = 1e-6
CANARY = 7.0
D, INPUTS, NUM_POSITIONS = 128, 64, 50
SLOTS = [79, -1, 0, 31, -1000, 5, *range(40, 54)]
TILE = HopperTile(
    block_rows=16, block_outputs=D, block_inputs=16, num_splits=1, row_stages=3, weight_stages=2
)
TILES = [
    pytest.param(TILE, id="plain"),
    pytest.param(replace(TILE, block_rows=32, is_swapped=True), id="swapped"),
    pytest.param(replace(TILE, num_splits=2), id="shared"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What qkv_store is given; caches and queries are full of canaries."""

    x_RI: torch.Tensor
    weight_OI: torch.Tensor
    rows: QkvRows
    caches: torch.Tensor


def _case(*, heads: tuple[int, int], has_norm: bool = True) -> Case:
    generator = torch.Generator().manual_seed(sum(heads))
    (num_heads, num_kv_heads), num_rows = heads, len(SLOTS)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    norms, angles = 1 + 0.2 * random(2, D), random(NUM_POSITIONS, D // 2)
    positions = torch.randint(0, NUM_POSITIONS, (num_rows,), generator=generator, dtype=torch.int32)
    positions[1] = -1
    weight_OI = random((num_heads + 2 * num_kv_heads) * D, INPUTS) * INPUTS**-0.5
    return Case(
        x_RI=random(num_rows, INPUTS),
        weight_OI=weight_OI,
        rows=QkvRows(
            qkv_TX=torch.empty(num_rows, len(weight_OI)),
            positions_T=positions,
            slot_mapping_T=torch.tensor(SLOTS),
            cos_sin_PD=torch.cat((angles.cos(), angles.sin()), 1),
            q_norm_D=norms[0] if has_norm else None,
            k_norm_D=norms[1] if has_norm else None,
            eps=EPS,
            q_THD=torch.full((num_rows + 1, num_heads, D), CANARY)[:num_rows],
        ),
        caches=torch.full((2, 5, 16, num_kv_heads, D), CANARY),
    )


def _pointer(numbers: torch.Tensor | None) -> Any:
    return None if numbers is None else Pointer(numbers.numpy().ravel())


def _emulate(tile: HopperTile, case: Case) -> None:
    """Launch as hopper_heads does."""
    rows, (num_rows, num_heads, _) = case.rows, case.rows.q_THD.shape
    num_kv_heads = case.caches.shape[3]
    run_emulated(
        (hopper_heads_kernel, hopper_projection_kernel, large_qkv_kernel, large_product),
        Descriptor(case.x_RI.numpy(), (tile.block_rows, tile.block_inputs)),
        Descriptor(case.weight_OI.numpy(), (D, tile.block_inputs)),
        *(_pointer(case.weight_OI), _pointer(sum_squares_ref(case.x_RI)), _pointer(rows.positions_T)),
        *(_pointer(rows.cos_sin_PD), _pointer(rows.q_norm_D), _pointer(rows.k_norm_D)),
        *(_pointer(case.caches[0]), _pointer(case.caches[1]), _pointer(rows.slot_mapping_T)),
        *(_pointer(rows.q_THD), rows.q_THD.stride(0), num_rows, EPS, rows.eps),
        num_programs=-(-num_rows // tile.block_rows) * (num_heads + 2 * num_kv_heads),
        cluster_size=tile.num_splits,
        H=num_heads,
        K=num_kv_heads,
        PDL=False,
        **head_constants(tile, INPUTS),
    )


def _check(tile: HopperTile, case: Case) -> None:
    caches = case.caches.clone()
    expected = qkv_store_ref(case.x_RI, case.weight_OI, EPS, case.rows, *caches)
    _emulate(tile, case)
    torch.testing.assert_close(case.rows.q_THD, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case.caches, caches, rtol=1e-5, atol=1e-5)
    # Cells that nobody writes keep their canary.
    assert torch.equal(case.caches == CANARY, caches == CANARY)


@pytest.mark.parametrize("tile", TILES)
def test_every_kind_of_tile(tile: HopperTile) -> None:
    _check(tile, _case(heads=(4, 2)))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1)])
def test_groups_without_norms(heads: tuple[int, int]) -> None:
    _check(TILE, _case(heads=heads, has_norm=False))


def test_tiles_by_rows() -> None:
    """Qwen3-0.6B's, of two ranks, too; none for a model of 8B, or inputs that chunks do not divide."""
    for num_rows in (33, 64, 65, 96, 97, 128, 129, 160, 161, 192, 193, MOST_ROWS):
        tile = choose_head_tile(4096, 1024, num_rows=num_rows)
        down = choose_hopper_tile(1024, 3072, num_rows=num_rows)
        assert tile is not None
        assert down is not None
        assert choose_head_tile(2048, 1024, num_rows=num_rows) == tile
        assert tile.block_outputs == D
        assert 1024 % (tile.num_splits * tile.block_inputs) == 0
        held = head_constants(tile, 1024)
        warps = held["PRODUCT"].warps_per_cta
        first, second = (D, tile.block_rows) if tile.is_swapped else (tile.block_rows, D)
        assert first % (16 * warps[0]) == second % (8 * warps[1]) == 0
        assert warps[0] * warps[1] == tile.num_warps
        assert held["SUMMED"].warps_per_cta[1] == 1  # a thread has both halves of a head
        # A multiprocessor has room for it beside the kernel in front, down's, or half of them are free.
        num_programs = -(-num_rows // down.block_rows) * (1024 // down.block_outputs) * down.num_splits
        num_bytes = shared_bytes_of(tile, 1024, is_gated=False) + shared_bytes_of(down, 3072, is_gated=False)
        assert num_bytes + 2 * BARRIER_BYTES <= HOPPER_SHARED_BYTES or num_programs <= 64
    assert choose_head_tile(4096, 1024, num_rows=MOST_ROWS + 1) is None
    assert choose_head_tile(6144, 4096, num_rows=64) is None
    assert choose_head_tile(4096, 1000, num_rows=64) is None


def _on_gpu(num_rows: int, *, has_norm: bool) -> Case:
    """Return a case of Qwen3-0.6B's shapes: rows of one launch, the first of those of another."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    angles, slots = random(4096, D // 2), torch.randperm(2 * MOST_ROWS, generator=generator)[:MOST_ROWS]
    slots[2] = -1
    norms = (1 + 0.2 * random(2, D)).to("cuda", torch.bfloat16)
    return Case(
        x_RI=random(MOST_ROWS, 1024).to("cuda", torch.bfloat16)[:num_rows],
        weight_OI=(random(32 * D, 1024) / 32).to("cuda", torch.bfloat16),
        rows=QkvRows(
            qkv_TX=torch.empty(num_rows, 32 * D, device="cuda", dtype=torch.bfloat16),
            positions_T=torch.randint(-1, 4096, (MOST_ROWS,), generator=generator).int().cuda()[:num_rows],
            slot_mapping_T=slots.cuda()[:num_rows],
            cos_sin_PD=torch.cat((angles.cos(), angles.sin()), 1).cuda(),
            q_norm_D=norms[0] if has_norm else None,
            k_norm_D=norms[1] if has_norm else None,
            eps=EPS,
            q_THD=torch.full((MOST_ROWS, 16, D), CANARY, device="cuda", dtype=torch.bfloat16)[:num_rows],
        ),
        caches=torch.full((2, MOST_ROWS // 8, 16, 8, D), CANARY, device="cuda", dtype=torch.bfloat16),
    )


def _launch(case: Case) -> None:
    num_rows = len(case.x_RI)
    tile = choose_qkv_tile(num_rows, num_all_heads=32, head_dim=D, itemsize_bytes=2)
    assert tile is not None
    squares = sum_squares_ref(case.x_RI)
    options: dict[str, Any] = {"squares_RJ": squares, "tile": tile, "is_dependent": True}
    qkv_store(case.x_RI, case.weight_OI, EPS, case.rows, *case.caches, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("num_rows", [33, 40, 64, 72, 128, 136, 256])
def test_on_hopper(num_rows: int, has_norm: bool) -> None:
    case, alone = _on_gpu(num_rows, has_norm=has_norm), _on_gpu(num_rows, has_norm=has_norm)
    queries = qkv_store_ref(case.x_RI, case.weight_OI, EPS, case.rows, *case.caches)
    _launch(alone)
    for got, expected in ((alone.rows.q_THD, queries), (alone.caches, case.caches)):
        assert (got.float() - expected.float()).norm() < 4e-3 * expected.float().norm()
        assert torch.equal(got == CANARY, expected == CANARY)
    # Beside others, but in a launch of the same shape, a row is the same.
    for more in (64, 128, 256):
        if num_rows <= more < 2 * num_rows:
            beside = _on_gpu(more, has_norm=has_norm)
            _launch(beside)
            assert torch.equal(beside.rows.q_THD[:num_rows], alone.rows.q_THD)
