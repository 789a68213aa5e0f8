"""The worker's sequence table, against values worked out by hand."""

import pytest

from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Admission, Step
from worker_svc.errors import ProtocolError

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16, vocab_size=70000
)


@pytest.fixture
def table() -> SequenceTable:
    """A table whose lanes 0 and 2 hold 6 and 5 tokens, all computed but the ones just sampled."""
    table = SequenceTable(LIMITS)
    admissions = (admission(0), admission(2, 5, (3, 9)))
    table.apply(step(1, [(0, 6, True), (2, 5, True)], admissions=admissions))
    return table


def test_an_admission_fills_the_lane_and_a_sampling_row_knows_one_token_more(table: SequenceTable) -> None:
    assert table.num_known.tolist() == [7, 0, 6, 0]
    assert table.num_computed.tolist() == [6, 0, 5, 0]
    assert table.num_prompt.tolist() == [6, 0, 5, 0]
    assert table.block_table[0].tolist() == [1, 2, 0, 0, 0]
    assert table.block_table[2].tolist() == [3, 9, 0, 0, 0]
    assert table.is_held.tolist() == [True, False, True, False]
    assert table.incarnation.tolist() == [7, 0, 7, 0]
    assert table.num_lanes_held == 2


def test_apply_returns_where_each_row_starts(table: SequenceTable) -> None:
    rows = table.apply(step(2, [(2, 1, True), (0, 1, True)]))
    assert rows.lanes.tolist() == [2, 0]
    assert rows.num_tokens.tolist() == [1, 1]
    assert rows.starts.tolist() == [5, 6]
    assert rows.samples.tolist() == [True, True]


def test_a_prompt_in_chunks_samples_only_at_its_end() -> None:
    table = SequenceTable(LIMITS)
    rows = table.apply(step(1, [(1, 4, False)], admissions=(admission(1),)))
    assert rows.starts.tolist() == [0]
    assert (table.num_computed[1], table.num_known[1]) == (4, 6)
    rows = table.apply(step(2, [(1, 2, True)]))
    assert rows.starts.tolist() == [4]
    assert (table.num_computed[1], table.num_known[1]) == (6, 7)


def test_a_prefix_hit_starts_behind_what_is_computed() -> None:
    table = SequenceTable(LIMITS)
    rows = table.apply(step(1, [(3, 2, True)], admissions=(admission(3, num_computed_tokens=4),)))
    assert rows.starts.tolist() == [4]
    assert table.num_computed[3] == 6


def test_blocks_are_appended_in_order_and_a_lane_may_stand_there_twice(table: SequenceTable) -> None:
    table.apply(step(2, append_lanes=int32([0, 2, 0]), append_block_ids=int32([11, 12, 13])))
    assert table.block_table[0].tolist() == [1, 2, 11, 13, 0]
    assert table.block_table[2].tolist() == [3, 9, 12, 0, 0]
    assert table.num_blocks.tolist() == [4, 0, 3, 0]


def test_a_lane_is_released_and_given_again_in_one_step(table: SequenceTable) -> None:
    new = admission(0, 3, (5,), incarnation=8, num_prompt_tokens=2)
    rows = table.apply(step(2, [(0, 3, True)], released_lanes=int32([0, 2]), admissions=(new,)))
    assert rows.starts.tolist() == [0]
    assert table.is_held.tolist() == [True, False, False, False]
    assert (table.num_prompt[0], table.num_known[0], table.incarnation[0]) == (2, 4, 8)
    assert table.num_blocks[0] == 1


def test_reset_forgets_all_lanes_and_starts_at_step_1(table: SequenceTable) -> None:
    table.reset()
    assert table.num_lanes_held == 0
    table.apply(step(1, [(0, 6, True)], admissions=(admission(0),)))
    assert table.num_known[0] == 7


def test_a_token_id_above_65535_stays_what_it_is() -> None:
    table = SequenceTable(LIMITS)
    table.apply(step(1, admissions=(admission(0, token_ids=int32([69999]), num_prompt_tokens=1),)))
    assert table.num_known[0] == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (step(3), "step_id is 3, but must be 2: it grows by one"),
        (step(1), "step_id is 1, but must be 2: it grows by one"),
        (step(2, [(1, 1, True)]), "row_lanes is 1, but must name lanes that are held"),
        (step(2, [(4, 1, True)]), "row_lanes is 4, but must be in [0, 3]"),
        (step(2, [(-1, 1, True)]), "row_lanes is -1, but must be in [0, 3]"),
        (step(2, [(0, 1, True), (0, 1, True)]), "row_lanes is 0, but must name each lane once"),
        (step(2, [(0, 0, False)]), "row_num_tokens is 0, but must be in [1, 16]"),
        (
            step(2, [(0, 2, True)]),
            "end of the row of lane 0 is 8, but must be at most 7, the tokens known",
        ),
        (
            step(2, [(0, 9, False), (2, 8, False)]),
            "sum of row_num_tokens is 17, but must be at most 16",
        ),
        (
            step(2, row_lanes=int32([0])),
            "number of row_num_tokens is 0, but must be that of row_lanes, 1",
        ),
        (
            step(2, row_lanes=int32([0]), row_num_tokens=int32([1])),
            "number of row_samples is 0, but must be that of row_lanes, 1",
        ),
        (step(2, released_lanes=int32([1])), "released_lanes is 1, but must name lanes that are held"),
        (step(2, released_lanes=int32([2, 2])), "released_lanes is 2, but must name each lane once"),
        (
            step(2, append_lanes=int32([3]), append_block_ids=int32([5])),
            "append_lanes is 3, but must name lanes that are held",
        ),
        (
            step(2, append_lanes=int32([0]), append_block_ids=int32([0])),
            "append_block_ids is 0, but must be in [1, 20]",
        ),
        (
            step(2, append_lanes=int32([0]), append_block_ids=int32([21])),
            "append_block_ids is 21, but must be in [1, 20]",
        ),
        (
            step(2, append_lanes=int32([0]), append_block_ids=int32([5, 6])),
            "number of append_block_ids is 2, but must be that of append_lanes, 1",
        ),
        (
            step(2, append_lanes=int32([0] * 4), append_block_ids=int32([5, 6, 7, 8])),
            "number of blocks of lane 0 is 6, but must be at most 5",
        ),
    ],
)
def test_a_breach_names_field_value_and_limit(table: SequenceTable, wrong: Step, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        table.apply(wrong)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (admission(0), "admission lane is 0, but must name a lane that is free"),
        (admission(4), "admission lane is 4, but must be in [0, 3]"),
        (admission(1, max_total_tokens=17), "max_total_tokens of lane 1 is 17, but must be in [1, 16]"),
        (admission(1, 0), "number of token_ids of lane 1 is 0, but must be in [1, 12]"),
        (admission(1, 13), "number of token_ids of lane 1 is 13, but must be in [1, 12]"),
        (admission(1, num_prompt_tokens=7), "num_prompt_tokens of lane 1 is 7, but must be in [1, 6]"),
        (admission(1, num_computed_tokens=6), "num_computed_tokens of lane 1 is 6, but must be in [0, 5]"),
        (
            admission(1, token_ids=int32([70000]), num_prompt_tokens=1),
            "token_ids of lane 1 is 70000, but must be in [0, 69999]",
        ),
        (
            admission(1, token_ids=int32([-1]), num_prompt_tokens=1),
            "token_ids of lane 1 is -1, but must be in [0, 69999]",
        ),
        (admission(1, block_ids=(0,)), "block_ids of lane 1 is 0, but must be in [1, 20]"),
        (admission(1, block_ids=range(1, 7)), "number of block_ids of lane 1 is 6, but must be at most 5"),
        (
            admission(1, sampling=sampling(stop_token_ids=int32([70000]))),
            "stop_token_ids of lane 1 is 70000, but must be in [0, 69999]",
        ),
        (
            admission(1, sampling=sampling(bias_token_ids=int32([5]))),
            "number of bias_values of lane 1 is 0, but must be that of its ids, 1",
        ),
    ],
)
def test_a_wrong_admission_names_field_value_and_limit(
    table: SequenceTable, wrong: Admission, message: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        table.apply(step(2, admissions=(admission(3, block_ids=(7, 8)), wrong)))
    assert str(caught.value) == message


def test_a_row_past_its_blocks_is_refused() -> None:
    table = SequenceTable(LIMITS)
    with pytest.raises(ProtocolError) as caught:
        table.apply(step(1, [(0, 6, True)], admissions=(admission(0, block_ids=(1,)),)))
    assert (
        str(caught.value) == "end of the row of lane 0 is 6, but must be at most 4, the slots of its blocks"
    )


def test_a_row_that_samples_before_its_last_known_token_is_refused() -> None:
    table = SequenceTable(LIMITS)
    with pytest.raises(ProtocolError) as caught:
        table.apply(step(1, [(0, 4, True)], admissions=(admission(0),)))
    assert str(caught.value) == (
        "end of the row of lane 0 is 4, but must be 6, the tokens known, because the row samples"
    )


def test_a_token_past_max_total_tokens_is_refused() -> None:
    table = SequenceTable(LIMITS)
    table.apply(step(1, [(0, 6, True)], admissions=(admission(0, max_total_tokens=7),)))
    with pytest.raises(ProtocolError) as caught:
        table.apply(step(2, [(0, 1, True)]))
    assert str(caught.value) == (
        "tokens with the sampled one of lane 0 is 8, but must be at most 7, its max_total_tokens"
    )
