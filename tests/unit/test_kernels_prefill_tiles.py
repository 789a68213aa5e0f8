"""Cutting prefill rows into tiles: which, in what order, and what is padding."""

import numpy as np
import pytest
import torch

from kernels.prefill_tiles import (
    PrefillConfig,
    choose_prefill_config,
    make_prefill_tiles,
    next_power_of_2,
    prefill_tiles,
    tokens_per_tile,
)

CONFIG = PrefillConfig(num_queries=16, tile_size=16, fresh_tile_size=16, num_warps=4, num_stages=2)


def int32(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


def test_rows_with_the_longest_context_come_first_and_of_a_row_its_last_tile() -> None:
    tiles = prefill_tiles(int32(2, 5, 10, 14, 16), int32(3, 15, 12, 12), tokens_per_tile=2)
    assert tiles[:, :2].tolist() == [[1, 4], [1, 2], [1, 0], [2, 2], [2, 0], [3, 0], [0, 2], [0, 0]]


def test_a_tile_tells_where_its_row_begins_and_how_many_tokens_it_has() -> None:
    tiles = prefill_tiles(int32(2, 5, 10), int32(3, 15), tokens_per_tile=4)
    assert tiles.tolist() == [[1, 4, 5, 5], [1, 0, 5, 5], [0, 0, 2, 3]]


def test_some_rows_only() -> None:
    bounds, seq_lens = int32(2, 5, 10, 14, 16), int32(3, 15, 12, 13)
    tiles = prefill_tiles(bounds, seq_lens, tokens_per_tile=2, rows=np.array([0, 2, 3]), num_tiles=6)
    assert tiles[:, :2].tolist() == [[3, 0], [2, 2], [2, 0], [0, 2], [0, 0], [-1, 0]]
    assert tiles[1].tolist() == [2, 2, 10, 4]
    none = prefill_tiles(bounds, seq_lens, tokens_per_tile=2, rows=np.array([], np.int64), num_tiles=1)
    assert none.tolist() == [[-1, 0, 0, 0]]


def test_padding_has_no_row() -> None:
    tiles = prefill_tiles(int32(4, 4, 7), int32(7, 3), tokens_per_tile=4, num_tiles=3)
    assert tiles.tolist() == [[1, 0, 4, 3], [-1, 0, 0, 0], [-1, 0, 0, 0]]
    assert tiles.dtype == np.int32


def test_no_rows_make_no_tiles() -> None:
    assert prefill_tiles(int32(0), int32(), tokens_per_tile=4, num_tiles=1).tolist() == [[-1, 0, 0, 0]]


def test_more_tiles_than_programs_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="2 tiles, but the launch has 1"):
        prefill_tiles(int32(0, 5), int32(5), tokens_per_tile=4, num_tiles=1)


def test_tiles_of_tensors() -> None:
    bounds, seq_lens = torch.tensor([2, 4, 12]), torch.tensor([2, 8])
    tiles = make_prefill_tiles(bounds, seq_lens, config=CONFIG, group=4)
    assert tiles.tiles_I4.tolist() == [[1, 4, 4, 8], [1, 0, 4, 8], [0, 0, 2, 2]]
    assert tiles.config is CONFIG
    assert not tiles.has_old


def test_tiles_of_rows_that_have_older_tokens() -> None:
    bounds, seq_lens = torch.tensor([2, 4, 12]), torch.tensor([3, 8])
    assert make_prefill_tiles(bounds, seq_lens, config=CONFIG, group=4).has_old


def test_a_tile_holds_whole_tokens() -> None:
    assert tokens_per_tile(CONFIG, 3) == 5
    with pytest.raises(ValueError, match="tiles of 16 queries do not hold a group of 17 heads"):
        tokens_per_tile(CONFIG, 17)


@pytest.mark.parametrize(("max_seqlen_q", "num_queries"), [(1, 16), (20, 64), (1024, 64)])
def test_short_chunks_take_small_tiles(max_seqlen_q: int, num_queries: int) -> None:
    cache = torch.empty(1, 16, 8, 128, dtype=torch.bfloat16)
    assert choose_prefill_config(max_seqlen_q, cache_NSKD=cache, group=2).num_queries == num_queries


def test_powers_of_two() -> None:
    assert [next_power_of_2(number) for number in (1, 2, 3, 4, 5, 1023)] == [1, 2, 4, 4, 8, 1024]
