"""Flat arrays of a step, against values worked out by hand."""

from typing import Any

import numpy as np
import pytest

from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.sampling_rows import SamplingRows
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Step

LIMITS = TableLimits(
    block_size=4,
    num_blocks=2**30,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=32,
    vocab_size=100,
)


def build(table: SequenceTable, a_step: Step) -> InputBatch:
    return InputBatch(table, table.apply(a_step))


def test_a_prompt_alone() -> None:
    batch = build(SequenceTable(LIMITS), step(1, [(5, 6, True)], admissions=(admission(5, 6, (9, 4)),)))
    assert batch.token_lanes.tolist() == [5] * 6
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.slot_mapping.tolist() == [36, 37, 38, 39, 16, 17]
    assert batch.cu_seqlens_q.tolist() == [0, 6]
    assert batch.query_lens.tolist() == [6]
    assert batch.seq_lens.tolist() == [6]
    assert batch.block_table.tolist() == [[9, 4]]
    assert batch.num_decode_rows == 0
    assert batch.num_rows == 1
    assert batch.sampling.lanes.tolist() == [5]
    assert batch.sampling.positions.tolist() == [6]
    assert batch.sampling.token_rows.tolist() == [5]


def test_dtypes_are_those_that_the_device_takes() -> None:
    batch = build(SequenceTable(LIMITS), step(1, [(0, 6, True)], admissions=(admission(0),)))
    assert {batch.token_lanes.dtype, batch.positions.dtype, batch.slot_mapping.dtype} == {np.dtype(np.int64)}
    assert {batch.cu_seqlens_q.dtype, batch.query_lens.dtype} == {np.dtype(np.int32)}
    assert {batch.seq_lens.dtype, batch.block_table.dtype} == {np.dtype(np.int32)}


def mixed_table() -> SequenceTable:
    """Lanes 0 and 1 decode at positions 5 and 8 next; their 5 and 8 tokens fill blocks 1, 2 and 3, 4."""
    table = SequenceTable(LIMITS)
    admissions = (admission(0, 5, (1, 2)), admission(1, 8, (3, 4)))
    table.apply(step(1, [(0, 5, True), (1, 8, True)], admissions=admissions))
    return table


def test_decode_and_prefill_rows_in_one_step() -> None:
    admissions = (admission(2, 7, (6, 7), num_computed_tokens=4),)
    append: dict[str, Any] = {"append_lanes": int32([1]), "append_block_ids": int32([5])}
    batch = build(
        mixed_table(), step(2, [(1, 1, True), (0, 1, True), (2, 2, False)], admissions=admissions, **append)
    )
    assert batch.token_lanes.tolist() == [1, 0, 2, 2]
    assert batch.positions.tolist() == [8, 5, 4, 5]
    assert batch.slot_mapping.tolist() == [20, 9, 28, 29]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 2, 4]
    assert batch.seq_lens.tolist() == [9, 6, 6]
    assert batch.block_table.tolist() == [[3, 4, 5], [1, 2, 0], [6, 7, 0]]
    assert batch.num_decode_rows == 2
    assert batch.sampling.lanes.tolist() == [1, 0]
    assert batch.sampling.positions.tolist() == [9, 6]
    assert batch.sampling.token_rows.tolist() == [0, 1]


def test_single_token_rows_go_first_and_results_keep_the_order_of_the_rows() -> None:
    # A prompt of 3, then a one-token chunk that does not sample, a decode row and a one-token prompt.
    admissions = (admission(2, 3, (6,)), admission(3, 4, (7,)), admission(4, 1, (8,)))
    rows = [(2, 3, True), (3, 1, False), (0, 1, True), (4, 1, True)]
    batch = build(mixed_table(), step(2, rows, admissions=admissions))
    assert batch.num_decode_rows == 3
    assert batch.query_lens.tolist() == [1, 1, 1, 3]
    assert batch.token_lanes.tolist() == [3, 0, 4, 2, 2, 2]
    assert batch.positions.tolist() == [0, 5, 0, 0, 1, 2]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 2, 3, 6]
    assert batch.seq_lens.tolist() == [1, 6, 1, 3]
    # Sampling rows stand as the engine sent them: lanes 2, 0, 4.
    assert batch.sampling.lanes.tolist() == [2, 0, 4]
    assert batch.sampling.positions.tolist() == [3, 6, 1]
    assert batch.sampling.token_rows.tolist() == [5, 1, 2]


def test_a_step_without_rows_gives_empty_arrays() -> None:
    batch = build(mixed_table(), step(2, released_lanes=int32([0])))
    assert batch.token_lanes.tolist() == []
    assert batch.cu_seqlens_q.tolist() == [0]
    assert batch.block_table.shape == (0, 0)
    assert batch.sampling.lanes.tolist() == []
    assert batch.num_rows == batch.num_decode_rows == 0


def test_slots_do_not_overflow_int32() -> None:
    batch = build(SequenceTable(LIMITS), step(1, [(0, 1, True)], admissions=(admission(0, 1, (2**30,)),)))
    assert batch.slot_mapping.tolist() == [2**32]


def sampling_of(*samplings: dict[str, Any], num_prompt_tokens: int = 6) -> SamplingRows:
    """The sampling rows of a step that admits lanes 0, 1 ... with these parameters and 6 tokens each."""
    admissions = tuple(
        admission(lane, sampling=sampling(**changes), num_prompt_tokens=num_prompt_tokens, block_ids=(1, 2))
        for lane, changes in enumerate(samplings)
    )
    rows = [(lane, 6, True) for lane in reversed(range(len(samplings)))]
    return build(SequenceTable(LIMITS), step(1, rows, admissions=admissions)).sampling


def test_parameters_follow_their_rows() -> None:
    rows = sampling_of(
        {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "seed": 2**64 - 1},
        {"num_logprobs_plus_one": 4},
    )
    assert rows.lanes.tolist() == [1, 0]
    assert rows.temperature.tolist() == [0.0, 0.5]
    assert rows.top_k.tolist() == [0, 7]
    assert rows.top_p.tolist() == [1.0, 0.25]
    assert rows.min_p.tolist() == [0.0, 0.125]
    assert rows.seed.tolist() == [0, -1]
    assert rows.num_logprobs_plus_one.tolist() == [4, 0]
    assert not rows.is_plain_greedy


def test_greedy_rows_without_extras_are_plain() -> None:
    rows = sampling_of({}, {"num_logprobs_plus_one": 3, "stop_token_ids": int32([5])})
    assert rows.is_plain_greedy
    assert (rows.penalties, rows.biases, rows.masks) == (None, None, None)


@pytest.mark.parametrize(
    "changes", [{"presence_penalty": 0.5}, {"frequency_penalty": -0.5}, {"repetition_penalty": 1.5}]
)
def test_penalties_are_listed_for_the_rows_that_use_them(changes: dict[str, float]) -> None:
    rows = sampling_of(changes, {}, num_prompt_tokens=4)
    assert rows.penalties is not None
    assert rows.penalties.rows.tolist() == [1]
    assert rows.penalties.lanes.tolist() == [0]
    assert rows.penalties.num_known.tolist() == [6]
    assert rows.penalties.num_prompt.tolist() == [4]
    assert rows.penalties.presence.tolist() == [changes.get("presence_penalty", 0.0)]
    assert rows.penalties.frequency.tolist() == [changes.get("frequency_penalty", 0.0)]
    assert rows.penalties.repetition.tolist() == [changes.get("repetition_penalty", 1.0)]
    assert not rows.is_plain_greedy


def test_biases_are_listed_as_entries() -> None:
    first = {"bias_token_ids": int32([3, 98]), "bias_values": np.array([1.5, -2.0], np.float32)}
    last = {"bias_token_ids": int32([7]), "bias_values": np.array([0.5], np.float32)}
    rows = sampling_of(first, {}, last)
    assert rows.biases is not None
    assert rows.biases.rows.tolist() == [0, 2, 2]
    assert rows.biases.token_ids.tolist() == [7, 3, 98]
    assert rows.biases.values.tolist() == [0.5, 1.5, -2.0]
    assert not rows.is_plain_greedy


@pytest.mark.parametrize(("num_prompt_tokens", "is_masked"), [(6, True), (5, True), (4, False), (3, False)])
def test_stop_ids_are_masked_before_min_tokens(num_prompt_tokens: int, is_masked: bool) -> None:
    # 6 tokens are known: with a prompt of 5, one output token of at least two is there.
    rows = sampling_of(
        {"min_tokens": 2, "stop_token_ids": int32([9, 2])}, num_prompt_tokens=num_prompt_tokens
    )
    assert (rows.masks is not None) == is_masked
    if rows.masks is not None:
        assert rows.masks.rows.tolist() == [0, 0]
        assert rows.masks.token_ids.tolist() == [9, 2]
        assert rows.masks.values.tolist() == [-np.inf, -np.inf]


def test_a_reused_lane_keeps_nothing_of_the_lane_before_it() -> None:
    table = SequenceTable(LIMITS)
    old = sampling(
        temperature=1.0,
        presence_penalty=1.0,
        bias_token_ids=int32([1]),
        bias_values=np.array([1.0], np.float32),
        stop_token_ids=int32([1]),
        min_tokens=9,
        num_logprobs_plus_one=5,
    )
    table.apply(step(1, [(0, 6, True)], admissions=(admission(0, sampling=old),)))
    rows = build(
        table, step(2, [(0, 6, True)], released_lanes=int32([0]), admissions=(admission(0),))
    ).sampling
    assert rows.is_plain_greedy
    assert rows.num_logprobs_plus_one.tolist() == [0]
