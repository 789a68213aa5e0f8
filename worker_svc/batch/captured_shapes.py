"""Decides which steps with prefill rows are captured, and how large the arrays of each kind are.

Up to some thousands of tokens all are: a launch of each kernel costs the host more than padding costs the
device. Above, nearly all are, of models whose layers take no longer than their launches. Knows nothing about
graphs or devices.
"""

from bisect import bisect_left
from typing import NamedTuple

from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.mixed_layout import MixedShape, TileTokens

_SMALLEST = (16, 32, 64)
_STEPS = ((128, 1024), (256, 2048), (512, 8192), (1024, 16384))
"""(distance, up to)."""
ALL_ROWS_TOKENS = 8192
"""Up to so many a step is captured whatever its rows, and whatever the model."""
MOST_LAYER_PRODUCTS = 1 << 38
"""Tokens times weights of a layer, of larger steps: 0.7 ms of an H200, and a layer's launches take a slow
host 0.79. Where layers take longer, nobody waits for the host."""
MOST_PADDING = 1024
"""Of such a step: 1.6 ms of an H200 with Qwen3-0.6B, half of that on average."""
MOST_DECODE_LEN = 4096
"""Of decode rows' contexts in such a step: few longer ones are split between programs if rows are counted."""
_MOST_LONE_PROMPTS, _TOKENS_A_LONE_PROMPT = 16, 128
ROW_COUNTS = (16, 256)
"""Steps of up to so many rows have kinds of their own where more may come. A padded decode row has a program
of each layer and KV head, which finds nothing to do in 1.5 to 4 ns of an H200: at 1,024 lanes and 8 KV heads
0.3 to 0.9 ms a step. And each of 16 rows is shared by four programs, one of 64 by none, long as it may be."""


class CapturedKind(NamedTuple):
    """Which steps one graph serves."""

    num_tokens: int
    """Padded."""
    num_rows: int
    """Most rows of a step, of whatever sort."""
    are_lone: bool
    """Whether all are new prompts."""


def captured_token_counts(max_num_batched_tokens: int, *, layer_weights: int) -> tuple[int, ...]:
    """List the numbers of tokens to capture, ascending; larger steps keep a device busy as they are.

    Args:
        max_num_batched_tokens: Of the largest step, which nearly all large ones are.
        layer_weights: Numbers that a token is multiplied with in each layer.
    """
    sizes, last = list(_SMALLEST), 0
    for distance, end in _STEPS:
        sizes += range(last + distance, end + 1, distance)
        last = end
    sizes = [*(size for size in sizes if size < max_num_batched_tokens), max_num_batched_tokens]
    most_tokens = max(ALL_ROWS_TOKENS, MOST_LAYER_PRODUCTS // layer_weights)
    return tuple(size for size in sizes if size <= most_tokens)


def captured_kinds(counts: tuple[int, ...], *, max_num_seqs: int) -> list[CapturedKind]:
    """List the kinds of steps of these numbers of tokens."""
    lone = [CapturedKind(count, _most_lone_prompts(count, max_num_seqs), True) for count in counts]
    return [
        *(CapturedKind(count, rows, False) for count in counts for rows in _row_counts(count, max_num_seqs)),
        *lone,
    ]


def choose_kind(batch: InputBatch, counts: tuple[int, ...], *, max_num_seqs: int) -> CapturedKind | None:
    """Choose the kind that holds a step with little loss; None: none does.

    Args:
        batch: The step.
        counts: As captured_token_counts gives them.
        max_num_seqs: No step has more rows.
    """
    index = bisect_left(counts, batch.num_tokens)
    if index == len(counts) or counts[index] - batch.num_tokens > MOST_PADDING:
        return None
    num_tokens, decode_lens = counts[index], batch.seq_lens[: batch.num_decode_rows]
    if num_tokens > ALL_ROWS_TOKENS and (decode_lens > MOST_DECODE_LEN).any():
        return None
    most_lone = _most_lone_prompts(num_tokens, max_num_seqs)
    if batch.num_rows <= most_lone and _are_new_prompts(batch):
        return CapturedKind(num_tokens, most_lone, True)
    row_counts = _row_counts(num_tokens, max_num_seqs)
    return CapturedKind(num_tokens, next(rows for rows in row_counts if batch.num_rows <= rows), False)


def _are_new_prompts(batch: InputBatch) -> bool:
    """Tell whether the step is new prompts and nothing else, few of which have captured shapes of their own.

    Others have room for many decode rows, prefill rows and tiles: with 1,024 lanes a prompt of 4,000 tokens
    took an H200 14.6 ms in such a shape, with 64 lanes 12.4.
    """
    return batch.num_decode_rows == 0 and not batch.are_prompts_old.any()


def _most_lone_prompts(num_tokens: int, max_num_seqs: int) -> int:
    return min(max(_MOST_LONE_PROMPTS, num_tokens // _TOKENS_A_LONE_PROMPT), max_num_seqs)


def _row_counts(num_tokens: int, max_num_seqs: int) -> tuple[int, ...]:
    """List the most rows of kinds of other steps, ascending."""
    most_rows = min(max_num_seqs, num_tokens)
    return (*(rows for rows in ROW_COUNTS if rows < most_rows), most_rows)


def padded_shape(kind: CapturedKind, *, max_num_seqs: int, tile_tokens: TileTokens) -> MixedShape:
    """Return the shape that holds every step of a kind."""
    num_tokens, most_rows, are_lone = kind
    num_prefill_rows = max(1, min(most_rows, num_tokens // 2))
    return MixedShape(
        num_tokens=num_tokens,
        num_decode_rows=0 if are_lone else min(most_rows, num_tokens),
        num_prefill_rows=num_prefill_rows,
        tile_tokens=tile_tokens,
        num_new_tiles=num_tokens // tile_tokens.new + num_prefill_rows,
        num_old_tiles=0 if are_lone else num_tokens // tile_tokens.old + num_prefill_rows,
        num_sampling=max_num_seqs,
        num_chosen=num_prefill_rows if are_lone else min(most_rows, num_tokens),
    )
