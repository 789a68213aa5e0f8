"""Which steps with prefill rows are captured, and the room that each kind of them has."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.worker_steps import admission, step
from worker_svc.batch import captured_shapes
from worker_svc.batch.captured_shapes import (
    ALL_ROWS_TOKENS,
    MOST_LAYER_PRODUCTS,
    CapturedKind,
    captured_kinds,
    captured_token_counts,
    choose_kind,
    padded_shape,
)
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.mixed_layout import MixedShape, TileTokens
from worker_svc.batch.sequence_table import SequenceTable

LIMITS = TableLimits(
    block_size=4,
    num_blocks=100,
    max_num_seqs=40,
    max_num_batched_tokens=256,
    max_model_len=32,
    vocab_size=100,
)
TILE_TOKENS = TileTokens(new=4, old=2)
QWEN3_WEIGHTS = 1024 * (2 * 24 * 128 + 3 * 3072)
COUNTS = (16, 32, 64, 128)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 16, 17, 64])
def test_the_padded_shape_holds_the_worst_rows(num_tokens: int) -> None:
    """As many rows as can be, each a token more than whole tiles."""
    shape = padded_shape(CapturedKind(num_tokens, 8, False), max_num_seqs=8, tile_tokens=TILE_TOKENS)
    assert shape.num_decode_rows == min(8, num_tokens)
    most_rows = min(8, num_tokens // 2)
    assert shape.num_prefill_rows >= most_rows
    for num_rows in range(1, most_rows + 1):
        lens = [2] * num_rows
        lens[0] += num_tokens - sum(lens)
        for tokens_per_tile, num_tiles in zip(
            TILE_TOKENS, (shape.num_new_tiles, shape.num_old_tiles), strict=True
        ):
            assert sum(-(-length // tokens_per_tile) for length in lens) <= num_tiles
    assert shape.num_sampling == 8
    assert shape.num_chosen == min(8, num_tokens)


def test_the_shape_of_lone_prompts_has_room_for_few_of_them_and_for_nothing_else() -> None:
    tile_tokens = TileTokens(new=64, old=32)
    shape = padded_shape(CapturedKind(512, 16, True), max_num_seqs=256, tile_tokens=tile_tokens)
    assert shape == MixedShape(
        num_tokens=512,
        num_decode_rows=0,
        num_prefill_rows=16,
        tile_tokens=tile_tokens,
        num_new_tiles=24,
        num_old_tiles=0,
        num_sampling=256,
        num_chosen=16,
    )
    few = padded_shape(CapturedKind(4, 16, True), max_num_seqs=256, tile_tokens=tile_tokens)
    assert few.num_prefill_rows == 2
    many = padded_shape(CapturedKind(16384, 128, True), max_num_seqs=256, tile_tokens=tile_tokens)
    assert (many.num_prefill_rows, many.num_chosen, many.num_new_tiles) == (128, 128, 256 + 128)


def test_kinds() -> None:
    """Lone prompts are as many as there is room for, new, without decode rows."""
    table = SequenceTable(LIMITS)
    admissions = [admission(lane, 5, (2 * lane + 1, 2 * lane + 2)) for lane in range(20)]

    def kind(step_id: int, *rows: tuple[int, int, bool], admitted: range = range(0)) -> CapturedKind | None:
        applied = table.apply(step(step_id, rows, admissions=tuple(admissions[lane] for lane in admitted)))
        return choose_kind(InputBatch(table, applied), COUNTS, max_num_seqs=LIMITS.max_num_seqs)

    assert kind(1, (0, 3, False), (1, 5, True), admitted=range(2)) == (16, 16, True)
    assert kind(2, (0, 2, True)) == (16, 16, False), "it has older tokens"
    assert kind(3, (0, 1, True), (2, 5, True), admitted=range(2, 3)) == (16, 16, False), "another decodes"
    many = [(lane, 2, False) for lane in range(3, 20)]
    assert kind(4, *many, admitted=range(3, 20)) == (64, 40, False), "17"
    assert kind(5, *((lane, 1, False) for lane in range(3, 20))) == (32, 32, False)


@pytest.mark.parametrize(
    ("num_tokens", "most_padding", "expected"),
    [(16, 0, 16), (17, 15, 32), (17, 14, None), (32, 0, 32), (33, 100, None)],
)
def test_a_step_is_padded_as_little_as_can_be(
    num_tokens: int, most_padding: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_shapes, "MOST_PADDING", most_padding)
    table = SequenceTable(replace(LIMITS, max_model_len=64))
    admitted = (admission(0, num_tokens, tuple(range(1, 17)), max_total_tokens=64),)
    batch = InputBatch(table, table.apply(step(1, [(0, num_tokens, True)], admissions=admitted)))
    kind = choose_kind(batch, (16, 32), max_num_seqs=40)
    assert (kind and kind.num_tokens) == expected
    assert choose_kind(batch, (), max_num_seqs=40) is None


@pytest.mark.parametrize(
    ("lane", "all_rows_tokens", "is_captured"), [(0, 15, True), (1, 15, False), (1, 16, True)]
)
def test_long_contexts_beside_a_large_step_are_decoded_as_many_as_they_are(
    lane: int, all_rows_tokens: int, is_captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lane 1 has 9 tokens with the next, lane 0 has 8; lane 5 is new."""
    monkeypatch.setattr(captured_shapes, "ALL_ROWS_TOKENS", all_rows_tokens)
    monkeypatch.setattr(captured_shapes, "MOST_DECODE_LEN", 8)
    table = SequenceTable(LIMITS)
    admissions = [admission(lane, 12, tuple(range(1 + 4 * lane, 5 + 4 * lane))) for lane in (0, 1, 5)]
    table.apply(step(1, [(0, 7, False), (1, 8, False)], admissions=tuple(admissions[:2])))
    applied = table.apply(step(2, [(lane, 1, False), (5, 9, False)], admissions=tuple(admissions[2:])))
    assert (choose_kind(InputBatch(table, applied), (16,), max_num_seqs=40) is not None) == is_captured


def test_captured_counts() -> None:
    counts = captured_token_counts(16384, layer_weights=QWEN3_WEIGHTS)
    assert counts[:4] == (16, 32, 64, 128)
    assert counts[-4:] == (13312, 14336, 15360, 16384)
    assert list(counts) == sorted(set(counts))
    # No step is padded by more than half of what it has, beyond the smallest.
    assert all(larger <= 2 * smaller for smaller, larger in pairwise(counts))
    assert len(captured_kinds(counts, max_num_seqs=16)) == 2 * len(counts)


def test_few_rows_have_room_of_their_own_where_there_may_be_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each number of tokens there is a kind that all its steps fit, and some of few rows."""
    monkeypatch.setattr(captured_shapes, "ROW_COUNTS", (2, 3))
    kinds = captured_kinds((2, 16), max_num_seqs=40)
    others = [(2, 2, False), (16, 2, False), (16, 3, False), (16, 16, False)]
    assert kinds == [*others, (2, 16, True), (16, 16, True)]
    table = SequenceTable(LIMITS)
    admissions = tuple(admission(lane, 5, (2 * lane + 1, 2 * lane + 2)) for lane in range(4))
    table.apply(step(1, [(lane, 1, False) for lane in range(4)], admissions=admissions))

    def most_rows(step_id: int, *rows: tuple[int, int, bool]) -> int:
        kind = choose_kind(InputBatch(table, table.apply(step(step_id, rows))), (2, 16), max_num_seqs=40)
        assert kind in kinds
        shape = padded_shape(kind, max_num_seqs=40, tile_tokens=TILE_TOKENS)
        most_prompts = min(kind.num_rows, kind.num_tokens // 2)
        assert (shape.num_decode_rows, shape.num_prefill_rows) == (kind.num_rows, most_prompts)
        assert (shape.num_chosen, shape.num_sampling) == (kind.num_rows, 40)
        return kind.num_rows

    assert most_rows(2, (0, 1, False), (1, 1, False), (2, 2, False)) == 3
    assert most_rows(3, (3, 2, False)) == 2
    assert most_rows(4, (0, 1, False), (1, 1, False), (2, 1, False), (3, 2, False)) == 16


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (8, (8,)),
        (48, (16, 32, 48)),
        (64, (16, 32, 64)),
        (200, (16, 32, 64, 128, 200)),
    ],
)
def test_the_last_count_is_the_largest_step(most: int, expected: tuple[int, ...]) -> None:
    assert captured_token_counts(most, layer_weights=QWEN3_WEIGHTS) == expected
    assert captured_token_counts(9500, layer_weights=QWEN3_WEIGHTS)[-3:] == (8192, 9216, 9500)


def test_large_steps_of_large_models_keep_a_device_busy_as_they_are() -> None:
    assert captured_token_counts(16384, layer_weights=1 << 28)[-1] == ALL_ROWS_TOKENS
    assert captured_token_counts(16384, layer_weights=MOST_LAYER_PRODUCTS // 10000)[-1] == 9216
