"""Paged decode attention against its reference: shapes, splits, padding, cells that nobody wrote."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels.decode_config import DecodeConfig, choose_decode_config, make_decode_workspace
from kernels.paged_decode import paged_decode, paged_decode_ref

NAN = float("nan")
ONE_SPLIT = DecodeConfig(num_splits=1, tile_size=16, num_warps=4, num_stages=2)
FOUR_SPLITS = DecodeConfig(num_splits=4, tile_size=16, num_warps=4, num_stages=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of a launch. What no row's context holds is NaN, in cells and in queries of padding."""

    q_BHD: torch.Tensor
    key_cache_NSKD: torch.Tensor
    value_cache_NSKD: torch.Tensor
    block_table_LM: torch.Tensor
    lanes_B: torch.Tensor
    seq_lens_B: torch.Tensor
    scale: float

    def arguments(self) -> tuple[Any, ...]:
        """Return them in the launcher's order."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def _case(
    place: Any,
    seq_lens: list[int],
    *,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 16,
    block_size: int = 16,
) -> Case:
    """One row a length; lanes are shuffled, length 0 is a padded row: lane -1 where its index is odd."""
    generator = torch.Generator().manual_seed(sum(seq_lens) + head_dim)
    num_rows, (num_heads, num_kv_heads) = len(seq_lens), heads
    num_blocks = [-(-seq_len // block_size) for seq_len in seq_lens]
    pool_size = 1 + sum(num_blocks) + 2
    cache = torch.full((2, pool_size, block_size, num_kv_heads, head_dim), NAN)
    ids = (torch.randperm(pool_size - 1, generator=generator) + 1).tolist()
    lanes = torch.randperm(num_rows + 2, generator=generator)[:num_rows].int()
    table = torch.full((num_rows + 2, max(num_blocks) + 1), 2**30, dtype=torch.int32)
    q_BHD = torch.randn(num_rows, num_heads, head_dim, generator=generator)
    for row, seq_len in enumerate(seq_lens):
        blocks = [ids.pop() for _ in range(num_blocks[row])]
        table[lanes[row], : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        cells = torch.randn(2, seq_len, num_kv_heads, head_dim, generator=generator)
        for index in range(seq_len):
            cache[:, blocks[index // block_size], index % block_size] = cells[:, index]
        if seq_len == 0:
            q_BHD[row] = NAN
            lanes[row] = -1 if row % 2 else lanes[row]
    move = {"device": place.device, "dtype": place.dtype}
    return Case(
        q_BHD=q_BHD.to(**move),
        key_cache_NSKD=cache[0].to(**move),
        value_cache_NSKD=cache[1].to(**move),
        block_table_LM=table.to(place.device),
        lanes_B=lanes.to(place.device),
        seq_lens_B=torch.tensor(seq_lens, dtype=torch.int32, device=place.device),
        scale=head_dim**-0.5,
    )


def _check(case: Case, place: Any, config: DecodeConfig | None = None) -> None:
    out = torch.full_like(case.q_BHD, NAN)
    paged_decode(*case.arguments(), out=out, config=config)
    expected = paged_decode_ref(*case.arguments())
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)


@pytest.mark.parametrize("config", [ONE_SPLIT, FOUR_SPLITS, None])
def test_lengths_and_padding(place: Any, config: DecodeConfig | None) -> None:
    _check(_case(place, [1, 16, 0, 17, 33, 64, 65, 0, 90]), place, config)


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (17, 1)])
def test_groups(place: Any, heads: tuple[int, int]) -> None:
    _check(_case(place, [40, 0, 5], heads=heads), place, FOUR_SPLITS)


@pytest.mark.parametrize("head_dim", [8, 24, 128, 256])
def test_head_dims(place: Any, head_dim: int) -> None:
    _check(_case(place, [35, 1], head_dim=head_dim), place, FOUR_SPLITS)


@pytest.mark.parametrize(("block_size", "tile_size"), [(16, 16), (16, 32), (24, 16), (48, 32), (64, 16)])
@pytest.mark.parametrize("num_splits", [1, 2])
def test_block_sizes(place: Any, block_size: int, tile_size: int, num_splits: int) -> None:
    case = _case(place, [50, 1, 97], block_size=block_size)
    _check(case, place, DecodeConfig(num_splits=num_splits, tile_size=tile_size, num_warps=4, num_stages=2))


def test_reference_is_softmax_attention() -> None:
    # One head, scores 0 and log 3: weights 1/4 and 3/4.
    keys = torch.zeros(2, 16, 1, 1)
    keys[1, 0], keys[1, 1] = 0.0, torch.tensor(3.0).log()
    values = torch.full((2, 16, 1, 1), NAN)
    values[1, 0], values[1, 1] = 4.0, 8.0
    table, lanes = torch.tensor([[7, 7], [1, 7]], dtype=torch.int32), torch.tensor([1, -1], dtype=torch.int32)
    seq_lens = torch.tensor([2, 2], dtype=torch.int32)
    out = paged_decode_ref(torch.ones(2, 1, 1), keys, values, table, lanes, seq_lens, 1.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([7.0, 0.0]))


def test_rows_do_not_depend_on_their_neighbours(place: Any) -> None:
    case = _case(place, [70, 33, 0, 5, 48])
    out = paged_decode(*case.arguments(), config=FOUR_SPLITS)
    for row in (0, 4):
        others = [index for index in range(5) if index != row]
        order = torch.tensor([*others[:2], row, *others[2:]], device=place.device)
        q_BHD, lanes_B, seq_lens_B = case.q_BHD[order], case.lanes_B[order], case.seq_lens_B[order]
        seq_lens_B[3:] = 0
        moved = paged_decode(
            q_BHD, case.key_cache_NSKD, case.value_cache_NSKD, case.block_table_LM, lanes_B, seq_lens_B,
            case.scale, config=FOUR_SPLITS,
        )  # fmt: skip
        assert torch.equal(moved[2], out[row])
        assert (moved[3:] == 0).all()


def test_the_order_of_rows_changes_no_result(place: Any) -> None:
    case = _case(place, [70, 0, 5, 48])
    order = torch.tensor([3, 1, 0, 2], dtype=torch.int32, device=place.device)
    ordered = paged_decode(*case.arguments(), config=FOUR_SPLITS, order_B=order)
    assert torch.equal(ordered, paged_decode(*case.arguments(), config=FOUR_SPLITS))


def test_only_the_output_is_written(place: Any) -> None:
    case = _case(place, [40, 0, 17])
    before = [tensor.clone() for tensor in case.arguments()[:-1]]
    room = torch.full((5, *case.q_BHD.shape[1:]), 7.0, device=place.device, dtype=place.dtype)
    paged_decode(*case.arguments(), out=room[1:4], config=FOUR_SPLITS)
    assert (room[[0, 4]] == 7).all()
    for tensor, old in zip(case.arguments()[:-1], before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0, equal_nan=True)


def test_a_shared_workspace_is_clean_after_each_launch(place: Any) -> None:
    cases = [_case(place, [70, 33]), _case(place, [5, 90, 0, 64])]
    workspace = make_decode_workspace(4 * 2 * 4, num_counters=4, head_dim=16, device=place.device)
    for case in (*cases, *cases):
        out = paged_decode(*case.arguments(), workspace=workspace, config=FOUR_SPLITS)
        expected = paged_decode_ref(*case.arguments())
        torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)
        assert (workspace.counters_X == 0).all()


def test_strided_queries(place: Any) -> None:
    case = _case(place, [40, 3])
    wide = torch.full((2, 5, 16), NAN, device=place.device, dtype=place.dtype)
    wide[:, :2] = case.q_BHD
    arguments = (wide[:, :2], *case.arguments()[1:])
    assert torch.equal(paged_decode(*arguments), paged_decode(*case.arguments()))


def test_no_rows(place: Any) -> None:
    case = _case(place, [3])
    q_BHD, lanes_B, seq_lens_B = case.q_BHD[:0], case.lanes_B[:0], case.seq_lens_B[:0]
    out = paged_decode(
        q_BHD, case.key_cache_NSKD, case.value_cache_NSKD, case.block_table_LM, lanes_B, seq_lens_B, 1.0
    )
    assert out.shape == (0, 2, 16)


@pytest.mark.parametrize("block_size", [16, 64])
def test_addresses_past_32_bits(place: Any, block_size: int) -> None:
    if place.dtype == torch.float32:
        pytest.skip("twice the memory for the same addresses")
    num_blocks = 2**31 // (block_size * 128) + 10
    # Not initialized: a CPU commits only the pages that are touched.
    cache = torch.empty(num_blocks, block_size, 1, 128, dtype=place.dtype, device=place.device)
    generator = torch.Generator().manual_seed(0)
    for block in (num_blocks - 1, 3):
        cells = torch.randn(block_size, 1, 128, generator=generator)
        cache[block] = cells.to(device=place.device, dtype=place.dtype)
    q_BHD = torch.randn(1, 2, 128, generator=generator).to(device=place.device, dtype=place.dtype)
    table, lanes, seq_lens = (
        torch.tensor(values, dtype=torch.int32, device=place.device)
        for values in ([[num_blocks - 1, 3]], [0], [2 * block_size - 1])
    )
    arguments = (q_BHD, cache, cache, table, lanes, seq_lens, 128**-0.5)
    out = paged_decode(*arguments, config=FOUR_SPLITS)
    torch.testing.assert_close(out, paged_decode_ref(*arguments), rtol=place.tolerance, atol=place.tolerance)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes_B": torch.zeros(2, dtype=torch.int64)}, "lanes must be int32"),
        ({"seq_lens_B": torch.zeros(3, dtype=torch.int32)}, r"seq_lens must be int32 of shape \(2,\)"),
        ({"order_B": torch.zeros(2, dtype=torch.int64)}, "order must be int32"),
        ({"block_table_LM": torch.zeros(2, 3)}, "the block table must be int32"),
        ({"q_BHD": torch.zeros(2, 3, 16)}, "do not fit 2 KV heads"),
        ({"q_BHD": torch.zeros(2, 4, 16, dtype=torch.float64)}, "queries of torch.float64 do not fit"),
        ({"q_BHD": torch.zeros(2, 16, 4).transpose(1, 2)}, "contiguous in heads and dims"),
        ({"key_cache_NSKD": torch.zeros(4, 16, 1, 16)}, "the caches must be alike"),
    ],
)
def test_wrong_arguments(changes: dict[str, torch.Tensor], message: str) -> None:
    arguments: dict[str, Any] = {
        "q_BHD": torch.zeros(2, 4, 16),
        "key_cache_NSKD": torch.zeros(4, 16, 2, 16),
        "value_cache_NSKD": torch.zeros(4, 16, 2, 16),
        "block_table_LM": torch.zeros(2, 3, dtype=torch.int32),
        "lanes_B": torch.zeros(2, dtype=torch.int32),
        "seq_lens_B": torch.zeros(2, dtype=torch.int32),
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        paged_decode(**(arguments | changes))


def test_a_small_workspace_is_refused() -> None:
    workspace = make_decode_workspace(7, num_counters=8, head_dim=16, device="cpu")
    cache = torch.zeros(4, 16, 2, 16)
    index = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="the workspace holds"):
        paged_decode(
            torch.zeros(2, 4, 16), cache, cache, torch.zeros(2, 3, dtype=torch.int32), index, index, 1.0,
            workspace=workspace, config=FOUR_SPLITS,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("num_rows", "max_context_len", "num_splits"),
    [(1, 4096, 16), (1, 128, 2), (8, 4096, 8), (32, 4096, 2), (256, 4096, 1), (1024, 4096, 1)],
)
def test_small_batches_are_split(num_rows: int, max_context_len: int, num_splits: int) -> None:
    config = choose_decode_config(num_rows, max_context_len, num_kv_heads=8, bytes_per_cell=256)
    assert config.num_splits == num_splits


@pytest.mark.parametrize(("bytes_per_cell", "tile_size"), [(128, 64), (256, 64), (512, 32), (1024, 16)])
def test_tiles_of_wide_heads_are_smaller(bytes_per_cell: int, tile_size: int) -> None:
    config = choose_decode_config(256, 4096, num_kv_heads=8, bytes_per_cell=bytes_per_cell, is_ordered=True)
    assert (config.num_splits, config.tile_size) == (1, tile_size)


@pytest.mark.parametrize(
    ("num_rows", "in_order", "otherwise"), [(32, 2, 2), (48, 2, 2), (49, 1, 2), (63, 1, 2)]
)
def test_rows_in_their_order_are_split_where_they_are_fewer(
    num_rows: int, in_order: int, otherwise: int
) -> None:
    for is_ordered, num_splits in ((True, in_order), (False, otherwise)):
        config = choose_decode_config(
            num_rows, 4096, num_kv_heads=8, bytes_per_cell=256, is_ordered=is_ordered
        )
        assert config.num_splits == num_splits
