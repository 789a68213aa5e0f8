"""Paged prefill attention against its reference: mixed rows, tiles, cells that nobody wrote."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels import paged_prefill as paged_prefill_module
from kernels.paged_prefill import paged_prefill, paged_prefill_ref
from kernels.prefill_tiles import PrefillConfig, PrefillTiles, make_prefill_tiles

NAN = float("nan")
SMALL = PrefillConfig(num_queries=16, tile_size=16, fresh_tile_size=16, num_warps=4, num_stages=2)
MIXED = [(1, 1), (20, 20), (1, 33), (7, 40), (16, 16), (17, 64), (0, 5)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of a launch. What no row's context holds is NaN; so are queries of no row."""

    q_THD: torch.Tensor
    key_cache_NSKD: torch.Tensor
    value_cache_NSKD: torch.Tensor
    block_table_LM: torch.Tensor
    lanes_R: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens_R: torch.Tensor
    scale: float

    def run(self, config: PrefillConfig | None, out: torch.Tensor | None = None) -> torch.Tensor:
        """Launch it."""
        return paged_prefill(*self.arguments(), out=out, tiles=self.tiles(config) if config else None)

    def tiles(self, config: PrefillConfig) -> PrefillTiles:
        """Return the launch's programs."""
        group = self.q_THD.shape[1] // self.key_cache_NSKD.shape[2]
        return make_prefill_tiles(self.cu_seqlens_q, self.seq_lens_R, config=config, group=group)

    def expected(self) -> torch.Tensor:
        """Return what it should give, for the tokens of the rows."""
        return paged_prefill_ref(*self.arguments())

    def arguments(self) -> list[Any]:
        """Return what every launch is given."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


def _case(
    place: Any,
    rows: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 16,
    block_size: int = 16,
    num_before: int = 0,
) -> Case:
    """Rows of (query_len, context_len), after num_before tokens that belong to no row."""
    generator = torch.Generator().manual_seed(sum(map(sum, rows)) + head_dim)
    num_heads, num_kv_heads = heads
    num_blocks = [-(-context // block_size) for _, context in rows]
    pool_size = 1 + sum(num_blocks) + 2
    cache = torch.full((2, pool_size, block_size, num_kv_heads, head_dim), NAN)
    ids = (torch.randperm(pool_size - 1, generator=generator) + 1).tolist()
    table = torch.full((len(rows) + 2, max(num_blocks) + 1), 2**30, dtype=torch.int32)
    lanes = torch.randperm(len(rows) + 2, generator=generator)[: len(rows)].int()
    for row, (_, context) in enumerate(rows):
        blocks = torch.tensor([ids.pop() for _ in range(num_blocks[row])])
        table[lanes[row], : len(blocks)] = blocks
        index = torch.arange(context)
        cells = torch.randn(2, context, num_kv_heads, head_dim, generator=generator)
        cache[:, blocks[index // block_size], index % block_size] = cells
    bounds = torch.tensor([num_before, *(query for query, _ in rows)]).cumsum(0).int()
    q_THD = torch.randn(int(bounds[-1]), num_heads, head_dim, generator=generator)
    q_THD[:num_before] = NAN
    move = {"device": place.device, "dtype": place.dtype}
    return Case(
        q_THD=q_THD.to(**move),
        key_cache_NSKD=cache[0].to(**move),
        value_cache_NSKD=cache[1].to(**move),
        block_table_LM=table.to(place.device),
        lanes_R=lanes.to(place.device),
        cu_seqlens_q=bounds.to(place.device),
        seq_lens_R=torch.tensor([context for _, context in rows], dtype=torch.int32, device=place.device),
        scale=head_dim**-0.5,
    )


def _check(case: Case, place: Any, config: PrefillConfig | None) -> None:
    out = torch.full_like(case.q_THD, NAN)
    case.run(config, out)
    torch.testing.assert_close(out, case.expected(), rtol=place.tolerance, atol=place.tolerance)


@pytest.mark.parametrize("config", [SMALL, None])
def test_mixed_rows(place: Any, config: PrefillConfig | None) -> None:
    _check(_case(place, MIXED), place, config)


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (17, 1)])
def test_groups(place: Any, heads: tuple[int, int]) -> None:
    _check(_case(place, [(9, 30), (1, 5)], heads=heads), place, None)
    if heads != (17, 1):
        _check(_case(place, [(9, 30), (1, 5)], heads=heads), place, SMALL)


@pytest.mark.parametrize("head_dim", [8, 24, 128, 256])
def test_head_dims(place: Any, head_dim: int) -> None:
    _check(_case(place, [(20, 35), (1, 1)], head_dim=head_dim), place, SMALL)


@pytest.mark.parametrize(("block_size", "tile_size"), [(16, 16), (16, 32), (24, 16), (48, 32), (64, 16)])
def test_block_sizes(place: Any, block_size: int, tile_size: int) -> None:
    config = PrefillConfig(
        num_queries=32, tile_size=tile_size, fresh_tile_size=tile_size, num_warps=4, num_stages=2
    )
    _check(_case(place, [(50, 50), (1, 97), (13, 70)], block_size=block_size), place, config)


def test_padding_tiles_write_nothing(place: Any) -> None:
    case = _case(place, [(7, 20), (20, 30)])
    real = case.tiles(SMALL).tiles_I4
    padded = torch.full((len(real) + 3, 4), -1, dtype=torch.int32, device=place.device)
    padded[2 : 2 + len(real)] = real.flip(0)
    out = torch.full_like(case.q_THD, NAN)
    case_out = paged_prefill(*case.arguments(), out=out, tiles=PrefillTiles(tiles_I4=padded, config=SMALL))
    assert torch.equal(case_out, case.run(SMALL))


@pytest.mark.parametrize("num_programs", [1, 5])
def test_programs_that_share_tiles(place: Any, num_programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs for each KV head, of which here are two, do what one a tile does; padding comes last."""
    case = _case(place, [(40, 50), (7, 20), (33, 33)], heads=(4, 2))
    expected, real = case.run(SMALL), case.tiles(SMALL).tiles_I4
    padding = torch.tensor([[-1, 0, 0, 0]] * 4, dtype=torch.int32, device=place.device)
    monkeypatch.setattr(paged_prefill_module, "MOST_PROGRAMS", 2 * num_programs)
    out = torch.full_like(case.q_THD, NAN)
    tiles = PrefillTiles(tiles_I4=torch.cat((real, padding)), config=SMALL)
    assert torch.equal(paged_prefill(*case.arguments(), out=out, tiles=tiles), expected)


def test_tokens_of_no_row_are_neither_read_nor_written(place: Any) -> None:
    case = _case(place, [(7, 20), (1, 3)], num_before=3)
    out = torch.full_like(case.q_THD, 7.0)
    case.run(SMALL, out)
    assert (out[:3] == 7).all()
    torch.testing.assert_close(out[3:], case.expected()[3:], rtol=place.tolerance, atol=place.tolerance)


def test_caches_are_left_as_they_are(place: Any) -> None:
    case = _case(place, MIXED)
    before = [cache.clone() for cache in (case.key_cache_NSKD, case.value_cache_NSKD)]
    case.run(SMALL)
    for cache, old in zip((case.key_cache_NSKD, case.value_cache_NSKD), before, strict=True):
        torch.testing.assert_close(cache, old, rtol=0, atol=0, equal_nan=True)


def test_a_chunk_gives_what_the_whole_prompt_gives(place: Any) -> None:
    whole = _case(place, [(48, 48)])
    chunk = Case(
        q_THD=whole.q_THD[32:],
        key_cache_NSKD=whole.key_cache_NSKD,
        value_cache_NSKD=whole.value_cache_NSKD,
        block_table_LM=whole.block_table_LM,
        lanes_R=whole.lanes_R,
        cu_seqlens_q=torch.tensor([0, 16], dtype=torch.int32, device=place.device),
        seq_lens_R=whole.seq_lens_R,
        scale=whole.scale,
    )
    assert torch.equal(chunk.run(SMALL), whole.run(SMALL)[32:])


def test_reference_is_causal() -> None:
    # One head, all scores 0: each token gets the mean of the values up to itself.
    keys, values = torch.zeros(2, 16, 1, 1), torch.full((2, 16, 1, 1), NAN)
    values[1, :3, 0, 0] = torch.tensor([2.0, 4.0, 9.0])
    table, lanes, bounds, seq_lens = (
        torch.tensor(numbers, dtype=torch.int32) for numbers in ([[9, 9], [1, 7]], [1], [0, 2], [3])
    )
    out = paged_prefill_ref(torch.ones(2, 1, 1), keys, values, table, lanes, bounds, seq_lens, 1.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([3.0, 5.0]))


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
    q_THD = torch.randn(9, 2, 128, generator=generator).to(device=place.device, dtype=place.dtype)
    table, lanes, bounds, seq_lens = (
        torch.tensor(values, dtype=torch.int32, device=place.device)
        for values in ([[num_blocks - 1, 3]], [0], [0, 9], [2 * block_size - 1])
    )
    indices = (table, lanes, bounds, seq_lens)
    config = PrefillConfig(num_queries=32, tile_size=32, fresh_tile_size=32, num_warps=4, num_stages=2)
    tiles = make_prefill_tiles(bounds, seq_lens, config=config, group=2)
    out = paged_prefill(q_THD, cache, cache, *indices, 128**-0.5, tiles=tiles)
    expected = paged_prefill_ref(q_THD, cache, cache, *indices, 128**-0.5)
    torch.testing.assert_close(out, expected, rtol=place.tolerance, atol=place.tolerance)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cu_seqlens_q", torch.zeros(2, dtype=torch.int32), r"cu_seqlens_q must be int32 of shape \(3,\)"),
        ("lanes_R", torch.zeros(2, dtype=torch.int64), "lanes must be int32"),
        ("seq_lens_R", torch.zeros(2, dtype=torch.int64), "seq_lens must be int32"),
        ("q_THD", torch.zeros(5, 3, 16), "do not fit 2 KV heads"),
        ("value_cache_NSKD", torch.zeros(4, 16, 2, 8), "the caches must be alike"),
        ("out", torch.zeros(5, 4, 8), "out must be contiguous"),
    ],
)
def test_wrong_arguments(name: str, value: torch.Tensor, message: str) -> None:
    arguments: dict[str, Any] = {
        "q_THD": torch.zeros(5, 4, 16),
        "key_cache_NSKD": torch.zeros(4, 16, 2, 16),
        "value_cache_NSKD": torch.zeros(4, 16, 2, 16),
        "block_table_LM": torch.zeros(2, 3, dtype=torch.int32),
        "lanes_R": torch.zeros(2, dtype=torch.int32),
        "cu_seqlens_q": torch.zeros(3, dtype=torch.int32),
        "seq_lens_R": torch.zeros(2, dtype=torch.int32),
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        paged_prefill(**(arguments | {name: value}))
