"""Lays a step with prefill rows out as arrays of fixed sizes, so that one captured graph serves many steps.

Decode rows come first and are padded up to a limit, then prefill rows, cut into tiles, padded too: prompts
that begin in the step into one list, those that go on into another, as different kernels compute them. A
step that is not captured has the same arrays without padding, but for those of the rows that sample: they
have one size, and come first, so that they lie in the same place for every step. Knows nothing about
graphs or devices.
Legend: T packed tokens, D decode rows, R prefill rows, I tiles, S sampling rows, padding included.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.padding import PADDING_LANE, choose_batch_size
from worker_svc.batch.step import Int32Array

MakeTiles = Callable[..., Int32Array]
"""Cuts ``rows`` of (bounds of new tokens, context lengths) into ``num_tiles`` tiles: (I, 4)."""
_FILLED_WITH_LANES = ("sampling_lanes", "token_lanes", "lanes", "new_tiles", "old_tiles")


def sampling_row_counts(max_num_seqs: int) -> tuple[int, ...]:
    """List the numbers of sampling rows to capture, ascending: powers of two, then ``max_num_seqs``."""
    powers = (1 << exponent for exponent in range((max_num_seqs - 1).bit_length()))
    return (*powers, max_num_seqs)


class TileTokens(NamedTuple):
    """Tokens of a row that a tile holds at most."""

    new: int
    """Of a prompt that begins in the step."""
    old: int
    """Of one that has tokens from before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedShape:
    """Sizes of a step's arrays."""

    num_tokens: int
    num_decode_rows: int
    num_prefill_rows: int
    tile_tokens: TileTokens
    num_new_tiles: int
    num_old_tiles: int
    num_sampling: int
    """For which arrays have room."""
    num_chosen: int
    """Of them, those whose tokens the model is asked for."""


def exact_shape(batch: InputBatch, *, max_num_seqs: int, tile_tokens: TileTokens) -> MixedShape:
    """Return the shape of this step without padding, but for sampling rows."""
    num_chosen = len(batch.sampling_places.lanes)
    prefill_lens, are_old = batch.query_lens[batch.num_decode_rows :], batch.are_prompts_old
    if num_chosen:
        num_chosen = choose_batch_size(num_chosen, sampling_row_counts(max_num_seqs))
    return MixedShape(
        num_tokens=batch.num_tokens,
        num_decode_rows=batch.num_decode_rows,
        num_prefill_rows=batch.num_rows - batch.num_decode_rows,
        tile_tokens=tile_tokens,
        num_new_tiles=_count_tiles(prefill_lens[~are_old], tile_tokens.new),
        num_old_tiles=_count_tiles(prefill_lens[are_old], tile_tokens.old),
        num_sampling=max_num_seqs,
        num_chosen=num_chosen,
    )


def _count_tiles(query_lens: Int32Array, tokens_per_tile: int) -> int:
    return int((-(-query_lens // tokens_per_tile)).sum())


def mixed_sizes(shape: MixedShape) -> dict[str, int]:
    """Tell how many numbers each array of such a step has, in the order in which they lie."""
    num_rows = shape.num_decode_rows + shape.num_prefill_rows
    return {
        "token_rows": shape.num_sampling,
        "sampling_lanes": shape.num_sampling,
        "last_positions": shape.num_sampling,
        "sampling_seq_lens": shape.num_sampling,
        "token_lanes": shape.num_tokens,
        "positions": shape.num_tokens,
        "lanes": num_rows,
        "seq_lens": num_rows,
        "cu_seqlens": shape.num_prefill_rows + 1,
        "new_tiles": 4 * shape.num_new_tiles,
        "old_tiles": 4 * shape.num_old_tiles,
    }


def write_mixed(
    arrays: Mapping[str, Int32Array], batch: InputBatch, *, shape: MixedShape, make_tiles: MakeTiles
) -> None:
    """Write what the device is told of the step.

    Padding among tokens, decode and sampling rows has lane -1; no tile has a padded prefill row.

    Args:
        arrays: To be overwritten, of ``mixed_sizes``: token_rows (S), sampling_lanes (S), last_positions (S),
            sampling_seq_lens (S), token_lanes (T), positions (T), lanes (D + R), seq_lens (D + R),
            cu_seqlens (R + 1), new_tiles (4 I), old_tiles (4 I).
        batch: The step.
        shape: What it is padded to.
        make_tiles: Cuts its prefill rows.
    """
    num_decode, sampling, end = batch.num_decode_rows, batch.sampling_places, shape.num_decode_rows
    lanes, seq_lens, bounds = batch.lanes, batch.seq_lens, batch.cu_seqlens_q[num_decode:]
    _fill(arrays["token_rows"], sampling.token_rows, 0)
    _fill(arrays["sampling_lanes"], sampling.lanes, PADDING_LANE)
    _fill(arrays["last_positions"], sampling.positions - 1, 0)
    _fill(arrays["sampling_seq_lens"], sampling.positions, 0)
    _fill(arrays["lanes"][:end], lanes[:num_decode], PADDING_LANE)
    _fill(arrays["lanes"][end:], lanes[num_decode:], 0)
    _fill(arrays["seq_lens"][:end], seq_lens[:num_decode], 0)
    _fill(arrays["seq_lens"][end:], seq_lens[num_decode:], 0)
    _fill(arrays["cu_seqlens"], bounds, int(bounds[-1]))
    _write_tiles(arrays, batch, shape=shape, make_tiles=make_tiles)
    _write_tokens(arrays["token_lanes"], arrays["positions"], batch)


def _write_tiles(
    arrays: Mapping[str, Int32Array], batch: InputBatch, *, shape: MixedShape, make_tiles: MakeTiles
) -> None:
    num_decode, are_old = batch.num_decode_rows, batch.are_prompts_old
    for name, rows, tokens_per_tile, num_tiles in (
        ("new_tiles", (~are_old).nonzero()[0], shape.tile_tokens.new, shape.num_new_tiles),
        ("old_tiles", are_old.nonzero()[0], shape.tile_tokens.old, shape.num_old_tiles),
    ):
        tiles = make_tiles(
            batch.cu_seqlens_q[num_decode:],
            batch.seq_lens[num_decode:],
            rows=rows,
            tokens_per_tile=tokens_per_tile,
            num_tiles=num_tiles,
        )
        arrays[name][:] = tiles.ravel()


def write_padding(arrays: Mapping[str, Int32Array]) -> None:
    """Write a step that is padding only."""
    for name, array in arrays.items():
        array[:] = PADDING_LANE if name in _FILLED_WITH_LANES else 0


def _write_tokens(token_lanes: Int32Array, positions: Int32Array, batch: InputBatch) -> None:
    num_tokens, query_lens = batch.num_tokens, batch.query_lens
    # In int32 from the start, which takes half of what the batch's own arrays of int64 do.
    first = (batch.starts - batch.cu_seqlens_q[:-1]).astype(np.int32)
    _fill(token_lanes, batch.lanes.astype(np.int32).repeat(query_lens), PADDING_LANE)
    np.add(np.arange(num_tokens, dtype=np.int32), first.repeat(query_lens), out=positions[:num_tokens])
    positions[num_tokens:] = 0


def _fill(
    array: Int32Array, values: np.ndarray[tuple[int], np.dtype[np.signedinteger]], padding: int
) -> None:
    num_values = len(values)
    assert num_values <= len(array), f"{num_values} values do not fit into {len(array)}"
    array[:num_values] = values
    array[num_values:] = padding
