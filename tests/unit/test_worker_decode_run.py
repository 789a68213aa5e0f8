"""Rows that decode step after step, against what is known of each lane when something comes between."""

import pytest

from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.input_batch import InputBatch
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step_rows import StepRows
from worker_svc.errors import ProtocolError

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16, vocab_size=100
)
BOTH = [(2, 1, True), (0, 1, True)]


def table_of_two() -> SequenceTable:
    """Lanes 2 and 0 have 6 and 3 tokens computed, and one more known; they have 8 slots."""
    table = SequenceTable(LIMITS)
    admissions = (admission(2, 6, (1, 2), max_total_tokens=14), admission(0, 3, (3, 4)))
    table.apply(step(1, [(2, 6, True), (0, 3, True)], admissions=admissions))
    return table


def starts_of(rows: StepRows) -> list[int]:
    starts: list[int] = rows.starts.tolist()
    return starts


def test_the_same_rows_go_on_where_they_ended() -> None:
    table = table_of_two()
    steps = [table.apply(step(step_id, BOTH)) for step_id in (2, 3)]
    assert [starts_of(rows) for rows in steps] == [[6, 3], [7, 4]]
    assert steps[0].run is steps[1].run is not None
    assert table.num_computed.tolist() == [5, 0, 8, 0]
    assert table.num_known.tolist() == [6, 0, 9, 0]


def test_rows_in_another_order_are_other_rows() -> None:
    table = table_of_two()
    table.apply(step(2, BOTH))
    assert starts_of(table.apply(step(3, BOTH[::-1]))) == [4, 7]


def test_a_step_that_is_no_decode_comes_between() -> None:
    table = table_of_two()
    table.apply(step(2, BOTH))
    table.apply(step(3, [(0, 1, True), (1, 2, True)], admissions=(admission(1, 2, (5,)),)))
    assert starts_of(table.apply(step(4, BOTH))) == [7, 5]


def test_a_row_that_did_not_sample_cannot_decode() -> None:
    table = table_of_two()
    table.apply(step(2, BOTH))
    table.apply(step(3, [(2, 1, True), (0, 1, False)]))
    with pytest.raises(
        ProtocolError, match="end of the row of lane 0 is 6, but must be at most 5, the tokens"
    ):
        table.apply(step(4, BOTH))


def test_a_lane_has_changed_hands() -> None:
    table = table_of_two()
    table.apply(step(2, BOTH))
    again = admission(2, 2, (6,), num_computed_tokens=1, max_total_tokens=9)
    rows = table.apply(step(3, BOTH, released_lanes=int32([2]), admissions=(again,)))
    assert starts_of(rows) == [1, 4]
    with pytest.raises(ProtocolError, match=r"row_lanes is 2, but must name lanes that are held"):
        table.apply(step(4, BOTH, released_lanes=int32([2])))


def test_the_first_lane_without_a_slot_is_found() -> None:
    table = table_of_two()
    for step_id in (2, 3):
        table.apply(step(step_id, BOTH))
    with pytest.raises(
        ProtocolError, match="end of the row of lane 2 is 9, but must be at most 8, the slots"
    ):
        table.apply(step(4, BOTH))


def test_an_appended_block_lets_the_rows_go_on_to_their_last_token() -> None:
    table = table_of_two()
    for step_id in (2, 3):
        table.apply(step(step_id, BOTH))
    append = {"append_lanes": int32([2, 0]), "append_block_ids": int32([7, 8])}
    assert starts_of(table.apply(step(4, BOTH, **append))) == [8, 5]
    more = {"append_lanes": int32([2]), "append_block_ids": int32([9])}
    for step_id in range(5, 9):
        table.apply(step(step_id, BOTH, **more if step_id == 5 else {}))
    message = "tokens with the sampled one of lane 2 is 15, but must be at most 14, its max_total_tokens"
    with pytest.raises(ProtocolError, match=message):
        table.apply(step(9, BOTH))


def test_masks_end() -> None:
    table = SequenceTable(LIMITS)
    masked = sampling(temperature=0.5, stop_token_ids=int32([5]), min_tokens=3)
    table.apply(step(1, [(1, 2, True)], admissions=(admission(1, 2, (1, 2, 3), sampling=masked),)))
    batches = [InputBatch(table, table.apply(step(step_id, [(1, 1, True)]))) for step_id in range(2, 6)]
    # The second of the tokens is sampled by the first of these steps, and the fourth may be a stop id.
    flavours = [batch.flavour for batch in batches]
    assert flavours == [SamplingFlavour.FULL] * 2 + [SamplingFlavour.DRAWN] * 2


def test_the_longest_row_is_told_first_also_later() -> None:
    table = table_of_two()
    orders = [InputBatch(table, table.apply(step(i, BOTH[::-1]))).longest_first.tolist() for i in (2, 3)]
    assert orders == [[1, 0], [1, 0]]
