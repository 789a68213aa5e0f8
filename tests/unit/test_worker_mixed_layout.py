"""The arrays of a step with prefill rows, padded and not, against values worked out by hand."""

from typing import Any

import numpy as np
import pytest

from tests.worker_steps import admission, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.mixed_layout import (
    MixedShape,
    TileTokens,
    exact_shape,
    mixed_sizes,
    write_mixed,
    write_padding,
)
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Int32Array

LIMITS = TableLimits(
    block_size=4,
    num_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=32,
    vocab_size=100,
)


TILE_TOKENS = TileTokens(new=4, old=2)


def mixed_batch() -> InputBatch:
    """Lane 1 decodes at position 8; lanes 5 and 3 prefill 6 and 2 tokens; lane 5 samples nothing yet."""
    table = SequenceTable(LIMITS)
    table.apply(step(1, [(1, 8, True)], admissions=(admission(1, 8, (3, 4, 5)),)))
    rows = [(5, 6, False), (1, 1, True), (3, 2, True)]
    admissions = (admission(5, 7, (9, 10)), admission(3, 2, (12,)))
    return InputBatch(table, table.apply(step(2, rows, admissions=admissions)))


def note_tiles(bounds: Any, seq_lens: Any, *, rows: Any, tokens_per_tile: int, num_tiles: int) -> Any:
    """Note what was asked for, as numbers that can be found again."""
    noted = [*bounds, *seq_lens, *rows, tokens_per_tile, num_tiles]
    return np.array([*noted, *[0] * (4 * num_tiles - len(noted))], np.int32)[: 4 * num_tiles].reshape(-1, 4)


def padded_shape_of(num_tokens: int) -> MixedShape:
    return MixedShape(
        num_tokens=num_tokens,
        num_decode_rows=3,
        num_prefill_rows=4,
        tile_tokens=TILE_TOKENS,
        num_new_tiles=3,
        num_old_tiles=1,
        num_sampling=3,
        num_chosen=3,
    )


def empty_arrays(shape: MixedShape) -> dict[str, Int32Array]:
    return {name: np.full(size, -9, np.int32) for name, size in mixed_sizes(shape).items()}


def mixed_arrays(batch: InputBatch, shape: MixedShape) -> dict[str, Int32Array]:
    arrays = empty_arrays(shape)
    write_mixed(arrays, batch, shape=shape, make_tiles=note_tiles)
    return arrays


def as_lists(arrays: dict[str, Any]) -> dict[str, list[int]]:
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int32)}
    return {name: array.tolist() for name, array in arrays.items()}


def test_a_step_as_it_is() -> None:
    batch = mixed_batch()
    shape = exact_shape(batch, max_num_seqs=3, tile_tokens=TILE_TOKENS)
    assert shape == MixedShape(
        num_tokens=9,
        num_decode_rows=1,
        num_prefill_rows=2,
        tile_tokens=TILE_TOKENS,
        num_new_tiles=3,
        num_old_tiles=0,
        num_sampling=3,
        num_chosen=2,
    )
    assert as_lists(mixed_arrays(batch, shape)) == {
        "token_rows": [0, 8, 0],
        "sampling_lanes": [1, 3, -1],
        "last_positions": [8, 1, 0],
        "sampling_seq_lens": [9, 2, 0],
        "token_lanes": [1, 5, 5, 5, 5, 5, 5, 3, 3],
        "positions": [8, 0, 1, 2, 3, 4, 5, 0, 1],
        "lanes": [1, 5, 3],
        "seq_lens": [9, 6, 2],
        "cu_seqlens": [1, 7, 9],
        "new_tiles": [1, 7, 9, 6, 2, 0, 1, 4, 3, 0, 0, 0],
        "old_tiles": [],
    }


def test_a_step_that_samples_nothing_chooses_nothing() -> None:
    table = SequenceTable(LIMITS)
    batch = InputBatch(table, table.apply(step(1, [(1, 3, False)], admissions=(admission(1, 8, (3, 4, 5)),))))
    assert exact_shape(batch, max_num_seqs=3, tile_tokens=TILE_TOKENS).num_chosen == 0


def test_a_padded_step() -> None:
    shape = padded_shape_of(12)
    assert as_lists(mixed_arrays(mixed_batch(), shape)) == {
        "token_rows": [0, 8, 0],
        "sampling_lanes": [1, 3, -1],
        "last_positions": [8, 1, 0],
        "sampling_seq_lens": [9, 2, 0],
        "token_lanes": [1, 5, 5, 5, 5, 5, 5, 3, 3, -1, -1, -1],
        "positions": [8, 0, 1, 2, 3, 4, 5, 0, 1, 0, 0, 0],
        "lanes": [1, -1, -1, 5, 3, 0, 0],
        "seq_lens": [9, 0, 0, 6, 2, 0, 0],
        "cu_seqlens": [1, 7, 9, 9, 9],
        "new_tiles": [1, 7, 9, 6, 2, 0, 1, 4, 3, 0, 0, 0],
        "old_tiles": [1, 7, 9, 6],
    }


def test_prompts_that_go_on_have_tiles_of_their_own() -> None:
    """Lane 2 goes on beside lane 4, which begins: one list tells of row 0 and the other of row 1."""
    table = SequenceTable(LIMITS)
    table.apply(step(1, [(2, 3, False)], admissions=(admission(2, 12, (3, 4, 5)),)))
    rows = [(2, 7, False), (4, 9, True)]
    batch = InputBatch(table, table.apply(step(2, rows, admissions=(admission(4, 9, (6, 7, 8)),))))
    shape = exact_shape(batch, max_num_seqs=3, tile_tokens=TILE_TOKENS)
    assert (shape.num_new_tiles, shape.num_old_tiles) == (3, 4)
    arrays = mixed_arrays(batch, shape)
    seen = [0, 7, 16, 10, 9]
    assert arrays["new_tiles"].tolist() == [*seen, 1, 4, 3, 0, 0, 0, 0]
    assert arrays["old_tiles"].tolist() == [*seen, 0, 2, 4, *[0] * 8]


def test_a_step_that_is_padding_only() -> None:
    shape = padded_shape_of(12)
    padding = empty_arrays(shape)
    assert list(padding)[:3] == ["token_rows", "sampling_lanes", "last_positions"], (
        "their place never changes"
    )
    write_padding(padding)
    assert as_lists(padding) == {
        "token_rows": [0] * 3,
        "sampling_lanes": [-1] * 3,
        "last_positions": [0] * 3,
        "sampling_seq_lens": [0] * 3,
        "token_lanes": [-1] * 12,
        "positions": [0] * 12,
        "lanes": [-1] * 7,
        "seq_lens": [0] * 7,
        "cu_seqlens": [0] * 5,
        "new_tiles": [-1] * 12,
        "old_tiles": [-1] * 4,
    }


def test_a_step_that_does_not_fit_is_a_bug() -> None:
    shape = padded_shape_of(8)
    with pytest.raises(AssertionError, match="9 values do not fit into 8"):
        mixed_arrays(mixed_batch(), shape)
