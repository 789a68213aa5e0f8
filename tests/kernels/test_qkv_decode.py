"""Norms, RoPE, KV store and decode attention in one launch, against references of the two it replaces."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from kernels.decode_config import (
    DecodeConfig,
    choose_qkv_decode_config,
    fuses_decode,
    make_decode_workspace,
)
from kernels.paged_decode import paged_decode
from kernels.qk_norm_rope import qk_norm_rope_store
from kernels.qkv_decode import qkv_decode, qkv_decode_ref

NAN = float("nan")
EPS = 1e-6
ONE_SPLIT = DecodeConfig(num_splits=1, tile_size=16, num_warps=4, num_stages=2)
FOUR_SPLITS = DecodeConfig(num_splits=4, tile_size=16, num_warps=4, num_stages=2)
LONG_SPLITS = DecodeConfig(num_splits=4, tile_size=16, num_warps=4, num_stages=3, min_split_tiles=2)
LENGTHS = [1, 0, 17, 0, 64]
"""The new cell is alone, the first of a block, the last of one; 0 is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of a launch. Cells that no row has written before are NaN, the new ones among them."""

    qkv_BX: torch.Tensor
    cos_sin_PD: torch.Tensor
    q_weight_D: torch.Tensor | None
    k_weight_D: torch.Tensor | None
    eps: float
    key_cache_NSKD: torch.Tensor
    value_cache_NSKD: torch.Tensor
    slot_mapping_B: torch.Tensor
    block_table_LM: torch.Tensor
    lanes_B: torch.Tensor
    seq_lens_B: torch.Tensor
    scale: float

    def arguments(self) -> tuple[Any, ...]:
        """Return them in the launcher's order."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def copied(self) -> "Case":
        """Return the same with caches of its own."""
        return replace(
            self,
            key_cache_NSKD=self.key_cache_NSKD.clone(),
            value_cache_NSKD=self.value_cache_NSKD.clone(),
        )

    def new_out(self) -> torch.Tensor:
        """Return memory for a result, full of NaN."""
        num_kv_heads, head_dim = self.key_cache_NSKD.shape[2:]
        num_heads = self.qkv_BX.shape[1] // head_dim - 2 * num_kv_heads
        return self.qkv_BX.new_full((len(self.qkv_BX), num_heads, head_dim), NAN)

    def run(self, config: DecodeConfig | None = None, **more: Any) -> torch.Tensor:
        """Launch the kernel."""
        out = self.new_out()
        assert qkv_decode(*self.arguments(), out=out, config=config, **more) is out
        return out


def _case(
    place: Any,
    seq_lens: list[int],
    *,
    shape: tuple[int, int, int] = (2, 1, 16),
    block_size: int = 16,
    has_norm: bool = True,
) -> Case:
    """One row a length, in shuffled lanes; length 0 is padding, without a lane where its index is odd."""
    generator = torch.Generator().manual_seed(sum(seq_lens) + shape[2])
    num_rows, (num_heads, num_kv_heads, head_dim) = len(seq_lens), shape
    num_blocks = [-(-seq_len // block_size) for seq_len in seq_lens]
    pool_size = 1 + sum(num_blocks) + 2
    cache = torch.full((2, pool_size, block_size, num_kv_heads, head_dim), NAN)
    ids = (torch.randperm(pool_size - 1, generator=generator) + 1).tolist()
    lanes = torch.randperm(num_rows + 2, generator=generator)[:num_rows].int()
    table = torch.full((num_rows + 2, max(num_blocks) + 1), 2**30, dtype=torch.int32)
    qkv_BX = torch.randn(num_rows, (num_heads + 2 * num_kv_heads) * head_dim, generator=generator)
    slots = torch.full((num_rows,), -1)
    for row, seq_len in enumerate(seq_lens):
        if seq_len == 0:
            qkv_BX[row] = NAN
            lanes[row] = -1 if row % 2 else lanes[row]
            continue
        blocks = torch.tensor([ids.pop() for _ in range(num_blocks[row])])
        table[lanes[row], : len(blocks)] = blocks
        index = torch.arange(seq_len - 1)
        old = torch.randn(2, seq_len - 1, num_kv_heads, head_dim, generator=generator)
        cache[:, blocks[index // block_size], index % block_size] = old
        slots[row] = blocks[-1] * block_size + (seq_len - 1) % block_size
    weights = 1 + 0.2 * torch.randn(2, head_dim, generator=generator)
    angles = torch.randn(max(seq_lens), head_dim // 2, generator=generator)
    move = {"device": place.device, "dtype": place.dtype}
    return Case(
        qkv_BX=qkv_BX.to(**move),
        cos_sin_PD=torch.cat((angles.cos(), angles.sin()), 1).to(place.device),
        q_weight_D=weights[0].to(**move) if has_norm else None,
        k_weight_D=weights[1].to(**move) if has_norm else None,
        eps=EPS,
        key_cache_NSKD=cache[0].to(**move),
        value_cache_NSKD=cache[1].to(**move),
        slot_mapping_B=slots.to(place.device),
        block_table_LM=table.to(place.device),
        lanes_B=lanes.to(place.device),
        seq_lens_B=torch.tensor(seq_lens, dtype=torch.int32, device=place.device),
        scale=head_dim**-0.5,
    )


def _check(case: Case, place: Any, config: DecodeConfig) -> None:
    ours, theirs = case.copied(), case.copied()
    out, expected = ours.run(config), qkv_decode_ref(*theirs.arguments())
    close = {"rtol": place.tolerance, "atol": place.tolerance}
    torch.testing.assert_close(out, expected, **close)
    # The new cells, and nothing else: all others are NaN or old.
    torch.testing.assert_close(ours.key_cache_NSKD, theirs.key_cache_NSKD, equal_nan=True, **close)
    torch.testing.assert_close(ours.value_cache_NSKD, theirs.value_cache_NSKD, rtol=0, atol=0, equal_nan=True)
    is_new = theirs.key_cache_NSKD.flatten(0, 1).isnan() != case.key_cache_NSKD.flatten(0, 1).isnan()
    assert is_new.flatten(1).any(1).sum() == (case.slot_mapping_B >= 0).sum()


@pytest.mark.parametrize("config", [ONE_SPLIT, FOUR_SPLITS, LONG_SPLITS])
def test_lengths_and_padding(place: Any, config: DecodeConfig) -> None:
    _check(_case(place, LENGTHS), place, config)


@pytest.mark.parametrize(
    ("shape", "has_norm"),
    [((2, 2, 16), True), ((6, 2, 64), False), ((17, 1, 16), True), ((3, 1, 24), False), ((2, 1, 128), True)],
)
def test_shapes(place: Any, shape: tuple[int, int, int], has_norm: bool) -> None:
    _check(_case(place, [36], shape=shape, has_norm=has_norm), place, LONG_SPLITS)


@pytest.mark.parametrize(
    ("block_size", "tile_size", "config"),
    [(16, 32, FOUR_SPLITS), (24, 16, LONG_SPLITS), (32, 16, ONE_SPLIT), (256, 64, FOUR_SPLITS)],
)
def test_block_sizes(place: Any, block_size: int, tile_size: int, config: DecodeConfig) -> None:
    case = _case(place, [257 if block_size == 256 else 99], block_size=block_size)
    _check(case, place, replace(config, tile_size=tile_size))


def test_numbers_are_those_of_the_two_launches(place: Any) -> None:
    """Up to the order of sums: keys and queries are rounded as they are where the cache lies between."""
    case = _case(place, [17, 40], shape=(2, 1, 32))
    ours, theirs = case.copied(), case.copied()
    out, q_BHD = ours.run(FOUR_SPLITS), case.new_out()
    caches = (theirs.key_cache_NSKD, theirs.value_cache_NSKD)
    inputs = (case.qkv_BX, case.seq_lens_B - 1, case.cos_sin_PD, case.q_weight_D, case.k_weight_D, EPS)
    qk_norm_rope_store(*inputs, *caches, case.slot_mapping_B, 2, 1, q_BHD)
    rows = (case.block_table_LM, case.lanes_B, case.seq_lens_B)
    expected = paged_decode(q_BHD, *caches, *rows, case.scale, config=FOUR_SPLITS)
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance / 4)
    is_other = (ours.key_cache_NSKD != theirs.key_cache_NSKD) & ~theirs.key_cache_NSKD.isnan()
    assert is_other.sum() <= 0.01 * theirs.key_cache_NSKD.numel()


def test_a_row_without_a_slot_attends_and_writes_nothing(place: Any) -> None:
    case = _case(place, [1, 17])
    expected = case.copied().run(LONG_SPLITS)
    case.slot_mapping_B[:] = torch.tensor([-1, -1000])
    before = case.copied()
    assert torch.equal(case.run(LONG_SPLITS), expected)
    for name in ("key_cache_NSKD", "value_cache_NSKD"):
        torch.testing.assert_close(getattr(case, name), getattr(before, name), rtol=0, atol=0, equal_nan=True)


def test_rows_do_not_depend_on_their_neighbours(place: Any) -> None:
    case = _case(place, [40, 17, 0])
    out = case.copied().run(FOUR_SPLITS)
    order = torch.tensor([2, 0, 1], device=place.device)
    names = ("qkv_BX", "lanes_B", "seq_lens_B", "slot_mapping_B")
    moved = replace(case, **{name: getattr(case, name)[order] for name in names})
    moved.lanes_B[2] = -1
    out_moved = moved.run(FOUR_SPLITS)
    assert torch.equal(out_moved[:2], out[order[:2]])
    assert (out_moved[2] == 0).all()


def test_a_shared_workspace_is_clean_after_each_launch(place: Any) -> None:
    cases = [_case(place, [40]), _case(place, [5, 66])]
    workspace = make_decode_workspace(2 * 2 * 4, num_counters=2, head_dim=16, device=place.device)
    for case in (*cases, cases[0]):
        expected = qkv_decode_ref(*case.copied().arguments())
        out = case.run(FOUR_SPLITS, workspace=workspace)
        torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)
        assert (workspace.counters_X == 0).all()


def test_strided_rows_and_a_table_of_the_models_dtype(place: Any) -> None:
    case = _case(place, [3, 2])
    wide = torch.cat((case.qkv_BX, case.qkv_BX), 1)[:, : case.qkv_BX.shape[1]]
    _check(replace(case, qkv_BX=wide, cos_sin_PD=case.cos_sin_PD.to(place.dtype)), place, FOUR_SPLITS)


def test_no_rows(place: Any) -> None:
    case = _case(place, [3])
    names = ("qkv_BX", "lanes_B", "seq_lens_B", "slot_mapping_B")
    assert replace(case, **{name: getattr(case, name)[:0] for name in names}).run().shape == (0, 2, 16)


def test_addresses_past_32_bits(place: Any) -> None:
    if place.dtype != torch.float16:
        pytest.skip("once is enough: it takes gigabytes of addresses, and on a GPU of memory")
    case = _case(place, [18], shape=(2, 1, 128))
    num_blocks = 2**31 // (16 * 128) + 10
    # Not initialized: a CPU commits only the pages that are touched.
    caches = torch.empty(2, num_blocks, 16, 1, 128, dtype=place.dtype, device=place.device)
    old_blocks = case.block_table_LM[case.lanes_B[0], :2].long()
    new_blocks = torch.tensor([3, num_blocks - 1], dtype=torch.int32, device=place.device)
    caches[0, new_blocks.long()] = case.key_cache_NSKD[old_blocks]
    caches[1, new_blocks.long()] = case.value_cache_NSKD[old_blocks]
    expected = case.copied().run(LONG_SPLITS)
    case.block_table_LM[case.lanes_B[0], :2] = new_blocks
    moved = replace(
        case,
        key_cache_NSKD=caches[0],
        value_cache_NSKD=caches[1],
        slot_mapping_B=torch.full_like(case.slot_mapping_B, (num_blocks - 1) * 16 + 1),
    )
    assert torch.equal(moved.run(LONG_SPLITS), expected)
    assert torch.equal(caches[1, -1, 1, 0], case.qkv_BX[0, 3 * 128 :])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes_B": torch.zeros(2, dtype=torch.int64)}, "lanes must be int32"),
        ({"seq_lens_B": torch.zeros(3, dtype=torch.int32)}, r"seq_lens must be int32 of shape \(2,\)"),
        ({"slot_mapping_B": torch.zeros(2, dtype=torch.int32)}, "slot_mapping must be int64"),
        ({"qkv_BX": torch.zeros(2, 5 * 16)}, "qkv must be dense"),
        ({"k_weight_D": None}, "must both be given"),
        ({"out": torch.zeros(2, 4, 16)[:, :2]}, "out must be contiguous"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    arguments = {
        "qkv_BX": torch.zeros(2, 4 * 16),
        "cos_sin_PD": torch.zeros(9, 16),
        "q_weight_D": torch.zeros(16),
        "k_weight_D": torch.zeros(16),
        "eps": EPS,
        "key_cache_NSKD": torch.zeros(4, 16, 1, 16),
        "value_cache_NSKD": torch.zeros(4, 16, 1, 16),
        "slot_mapping_B": torch.zeros(2, dtype=torch.int64),
        "block_table_LM": torch.zeros(2, 3, dtype=torch.int32),
        "lanes_B": torch.zeros(2, dtype=torch.int32),
        "seq_lens_B": torch.zeros(2, dtype=torch.int32),
        "scale": 1.0,
        "out": torch.zeros(2, 2, 16),
    }
    with pytest.raises(ValueError, match=message):
        qkv_decode(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_rows", "max_context_len", "num_splits", "tile_size"),
    [
        (1, 4096, 32, 32),
        (1, 128, 4, 32),
        (4, 4096, 8, 32),
        (8, 512, 4, 32),
        (16, 256, 2, 64),
        (24, 4096, 2, 32),
        (32, 4096, 1, 64),
        (64, 4096, 1, 16),
    ],
)
def test_small_batches_are_split(
    num_rows: int, max_context_len: int, num_splits: int, tile_size: int
) -> None:
    config = choose_qkv_decode_config(num_rows, max_context_len, num_kv_heads=8, bytes_per_cell=256)
    assert (config.num_splits, config.tile_size) == (num_splits, tile_size)


def test_wide_heads_have_smaller_tiles_but_no_shorter_splits() -> None:
    config = choose_qkv_decode_config(8, 4096, num_kv_heads=8, bytes_per_cell=1024)
    assert (config.tile_size, config.min_split_tiles) == (16, 8)


@pytest.mark.parametrize(
    ("num_rows", "num_kv_heads", "fuses"), [(32, 8, True), (33, 8, False), (64, 3, True)]
)
def test_many_rows_take_two_launches(num_rows: int, num_kv_heads: int, fuses: bool) -> None:
    assert fuses_decode(num_rows, num_kv_heads) == fuses
