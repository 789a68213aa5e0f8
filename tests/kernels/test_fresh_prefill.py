"""Prefill attention over new tokens where the projection left them, against one kernel after the other."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import paged_prefill as paged_prefill_module
from kernels.paged_prefill import FreshRows, can_read_fresh, paged_prefill, paged_prefill_ref
from kernels.prefill_tiles import PrefillConfig, make_prefill_tiles
from kernels.qk_norm_rope import qk_norm_rope_store, qk_norm_rope_store_ref

NUM_BEFORE, BLOCK_SIZE, MOST = 3, 16, 96
CONFIG = PrefillConfig(num_queries=32, tile_size=16, fresh_tile_size=32, num_warps=4, num_stages=2)


def _inputs(
    place: Any, rows: list[tuple[int, int]], *, heads: tuple[int, int], head_dim: int
) -> dict[str, Any]:
    """Rows of (query_len, context_len) behind tokens of no row; old cells are filled, new ones NaN."""
    generator = torch.Generator().manual_seed(head_dim)
    num_heads, num_kv_heads = heads

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device=place.device, dtype=place.dtype)

    def integers(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.as_tensor(values).to(device=place.device, dtype=dtype)

    num_columns = MOST // BLOCK_SIZE
    table = 1 + torch.randperm(len(rows) * num_columns, generator=generator).view(len(rows), num_columns)
    positions = torch.cat(
        [torch.zeros(NUM_BEFORE).long(), *(torch.arange(seq - new, seq) for new, seq in rows)]
    )
    row_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([new for new, _ in rows]))
    slots = torch.full((len(positions),), -1)
    new_positions = positions[NUM_BEFORE:]
    slots[NUM_BEFORE:] = table[row_of, new_positions // BLOCK_SIZE] * BLOCK_SIZE + new_positions % BLOCK_SIZE
    caches = [random(1 + table.numel(), BLOCK_SIZE, num_kv_heads, head_dim) for _ in range(2)]
    for cache in caches:
        cache.flatten(0, 1)[slots[slots >= 0].to(place.device)] = float("nan")
    bounds = [NUM_BEFORE]
    for new, _ in rows:
        bounds.append(bounds[-1] + new)
    return {
        "qkv": random(len(positions), (num_heads + 2 * num_kv_heads) * head_dim),
        "positions": integers(positions),
        "cos_sin": torch.randn(MOST, head_dim, generator=generator).to(place.device),
        "norms": [1 + 0.3 * random(head_dim) for _ in range(2)],
        "caches": (caches[0], caches[1]),
        "slots": integers(slots, torch.int64),
        "indices": (
            integers(table),
            integers(range(len(rows))),
            integers(bounds),
            integers([seq for _, seq in rows]),
        ),
    }


def test_fresh_rows(place: Any) -> None:
    _check_fresh_rows(place, heads=(4, 2), head_dim=16, has_norms=True)


@pytest.mark.parametrize(("heads", "head_dim", "has_norms"), [((3, 1), 64, False), ((2, 2), 24, True)])
def test_fresh_rows_of_other_heads(
    one_place: Any, heads: tuple[int, int], head_dim: int, has_norms: bool
) -> None:
    _check_fresh_rows(one_place, heads=heads, head_dim=head_dim, has_norms=has_norms)


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 2), 16), ((3, 1), 64), ((2, 2), 24)])
def test_new_prompts_alone(place: Any, heads: tuple[int, int], head_dim: int) -> None:
    rows = [(40, 40), (1, 1), (96, 96), (33, 33)]
    _check_fresh_rows(place, rows, heads=heads, head_dim=head_dim, has_norms=True)


@pytest.mark.parametrize("most_programs", [2, 6, 1000])
def test_new_prompts_get_what_they_get_beside_others(
    place: Any, most_programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: both kernels do the same in the same order. Padding tiles, of either kind, write nothing.

    They come last where programs share tiles.
    """
    monkeypatch.setattr(paged_prefill_module, "MOST_PROGRAMS", most_programs)
    given = _inputs(place, [(40, 40), (7, 7), (65, 65)], heads=(4, 2), head_dim=16)
    caches, (table, lanes, bounds, seq_lens) = given["caches"], given["indices"]
    q_TX, keys, values = given["qkv"].split((64, 32, 32), 1)
    alone = make_prefill_tiles(bounds, seq_lens, config=CONFIG, group=2)
    assert not alone.has_old
    padding = torch.tensor([[-1, 0, 0, 0], [-1, -1, -1, -1]], dtype=torch.int32, device=place.device)
    front = padding[1:] if most_programs == 1000 else padding[:0]
    alone = replace(alone, tiles_I4=torch.cat((front, alone.tiles_I4, padding)))
    outs = []
    for tiles in (alone, replace(alone, has_old=True)):
        outs.append(torch.full_like(q_TX, 7.0).view(-1, 4, 16))
        paged_prefill(
            *(q_TX.unflatten(1, (4, 16)), *caches, table, lanes, bounds, seq_lens, 0.25),
            tiles=tiles,
            fresh=FreshRows(key_TX=keys, value_TX=values),
            out=outs[-1],
        )
    assert torch.equal(*outs)
    assert (outs[0][:NUM_BEFORE] == 7).all()


def test_values_that_are_nan_stay_with_their_prompt(one_place: Any) -> None:
    given = _inputs(one_place, [(40, 40), (33, 33), (20, 20)], heads=(4, 2), head_dim=16)
    caches, (table, lanes, bounds, seq_lens) = given["caches"], given["indices"]
    q_TX, keys, values = given["qkv"].split((64, 32, 32), 1)
    tiles = make_prefill_tiles(bounds, seq_lens, config=CONFIG, group=2)

    def attend(has_old: bool) -> torch.Tensor:
        return paged_prefill(
            *(q_TX.unflatten(1, (4, 16)), *caches, table, lanes, bounds, seq_lens, 0.25),
            tiles=replace(tiles, has_old=has_old),
            fresh=FreshRows(key_TX=keys, value_TX=values),
        )

    before = [attend(has_old) for has_old in (False, True)]
    first, middle, last = (slice(*pair) for pair in itertools.pairwise(bounds.tolist()))
    values[middle] = float("nan")
    for has_old, expected in zip((False, True), before, strict=True):
        got = attend(has_old)
        assert got[middle].isnan().all()
        for row in (first, last):
            assert torch.equal(got[row], expected[row])


ROWS = [(40, 40), (7, 50), (1, 96), (33, 65)]


def _check_fresh_rows(
    place: Any,
    rows: list[tuple[int, int]] = ROWS,
    *,
    heads: tuple[int, int],
    head_dim: int,
    has_norms: bool,
) -> None:
    given = _inputs(place, rows, heads=heads, head_dim=head_dim)
    q_norm, k_norm = given["norms"] if has_norms else (None, None)
    keys, values = given["caches"]
    caches, eps, scale = (keys.clone(), values.clone()), 1e-6, head_dim**-0.5
    rotation = (given["positions"], given["cos_sin"])
    q_THD = qk_norm_rope_store_ref(
        given["qkv"], *rotation, q_norm, k_norm, eps, *caches, given["slots"], *heads
    )
    table, lanes, bounds, seq_lens = given["indices"]
    expected = paged_prefill_ref(q_THD, *caches, table, lanes, bounds, seq_lens, scale)

    qkv, ours = given["qkv"].clone(), given["caches"]
    our_q_THD = torch.empty_like(q_THD)
    qk_norm_rope_store(
        *(qkv, *rotation, q_norm, k_norm, eps, *ours, given["slots"], *heads, our_q_THD),
        in_place=True,
    )
    for cache, reference in zip(ours, caches, strict=True):
        torch.testing.assert_close(cache, reference, rtol=place.tolerance, atol=place.tolerance)
    sizes = [number * head_dim for number in (heads[0], heads[1], heads[1])]
    queries, keys, values = qkv.split(sizes, 1)
    assert torch.equal(queries, given["qkv"][:, : sizes[0]])
    assert torch.equal(values, given["qkv"][:, -sizes[2] :])
    for cache in ours:  # new cells are not read from the cache
        cache.flatten(0, 1)[given["slots"][given["slots"] >= 0]] = float("nan")
    out = torch.full_like(expected, 7.0)
    paged_prefill(
        our_q_THD,
        *(ours[0], ours[1], table, lanes, bounds, seq_lens, scale),
        tiles=make_prefill_tiles(bounds, seq_lens, config=CONFIG, group=heads[0] // heads[1]),
        fresh=FreshRows(key_TX=keys, value_TX=values),
        out=out,
    )
    assert (out[:NUM_BEFORE] == 7).all()
    torch.testing.assert_close(
        out[NUM_BEFORE:], expected[NUM_BEFORE:], rtol=place.tolerance, atol=place.tolerance
    )


def test_rows_that_the_accelerator_cannot_read() -> None:
    rows = torch.zeros(2, 48, dtype=torch.float16)
    assert can_read_fresh(rows, 16)
    assert not can_read_fresh(rows, 12)
    assert not can_read_fresh(rows[:, 1:], 16)
    assert not can_read_fresh(torch.zeros(2, 50, dtype=torch.float16)[:, :48], 16)
