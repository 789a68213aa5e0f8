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


class CapturedKind(NamedTuple):
    """Which steps one graph serves."""

    num_tokens: int
    """Padded."""
    are_lone: bool
    """Whether few new prompts, and nothing else."""


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


def captured_kinds(counts: tuple[int, ...]) -> list[CapturedKind]:
    """List the kinds of steps of these numbers of tokens."""
    return [CapturedKind(count, are_lone) for are_lone in (False, True) for count in counts]


def choose_kind(batch: InputBatch, counts: tuple[int, ...]) -> CapturedKind | None:
    """Choose the kind that holds a step with little loss; None: none does.

    Args:
        batch: The step.
        counts: As captured_token_counts gives them.
    """
    index = bisect_left(counts, batch.num_tokens)
    if index == len(counts) or counts[index] - batch.num_tokens > MOST_PADDING:
        return None
    longest = int(batch.seq_lens[: batch.num_decode_rows].max(initial=0))
    if counts[index] > ALL_ROWS_TOKENS and longest > MOST_DECODE_LEN:
        return None
    return CapturedKind(counts[index], _are_lone_prompts(batch, counts[index]))


def _are_lone_prompts(batch: InputBatch, num_tokens: int) -> bool:
    """Tell whether the step is a few new prompts and nothing else, which has captured shapes of its own.

    Others have room for many decode rows, prefill rows and tiles: with 1,024 lanes a prompt of 4,000 tokens
    took an H200 14.6 ms in such a shape, with 64 lanes 12.4.
    """
    num_prompts = batch.num_rows - batch.num_decode_rows
    is_few = batch.num_decode_rows == 0 and num_prompts <= _most_lone_prompts(num_tokens)
    return is_few and not batch.are_prompts_old.any()


def _most_lone_prompts(num_tokens: int) -> int:
    return max(_MOST_LONE_PROMPTS, num_tokens // _TOKENS_A_LONE_PROMPT)


def padded_shape(kind: CapturedKind, *, max_num_seqs: int, tile_tokens: TileTokens) -> MixedShape:
    """Return the shape that holds every step of a kind."""
    num_tokens, are_lone = kind
    num_prefill_rows, num_chosen = max(1, min(max_num_seqs, num_tokens // 2)), min(max_num_seqs, num_tokens)
    if are_lone:
        num_prefill_rows = num_chosen = min(num_prefill_rows, _most_lone_prompts(num_tokens))
    return MixedShape(
        num_tokens=num_tokens,
        num_decode_rows=0 if are_lone else min(max_num_seqs, num_tokens),
        num_prefill_rows=num_prefill_rows,
        tile_tokens=tile_tokens,
        num_new_tiles=num_tokens // tile_tokens.new + num_prefill_rows,
        num_old_tiles=0 if are_lone else num_tokens // tile_tokens.old + num_prefill_rows,
        num_sampling=max_num_seqs,
        num_chosen=num_chosen,
    )
