"""Leases on the worker's side: which rows each iteration computes, what is told, what is refused."""

from typing import Any

import numpy as np
import pytest

from tests.worker_steps import admission, int32, sampling, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.lease import Lease
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Admission, Logprobs, SampledTokens, Step
from worker_svc.errors import ProtocolError

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40, vocab_size=100
)


def _table(*admissions: Admission) -> SequenceTable:
    """A table whose lanes have computed their prompts and know one token more."""
    table = SequenceTable(LIMITS)
    rows = [(one.lane, len(one.token_ids), True) for one in admissions]
    table.apply(step(1, rows, admissions=admissions))
    return table


def _stopping(lane: int, block: int, *stop_ids: int, min_tokens: int = 0) -> Admission:
    return admission(
        lane,
        2,
        block_ids=(block, block + 1),
        sampling=sampling(stop_token_ids=int32(stop_ids), min_tokens=min_tokens),
    )


def _lease(step_id: int, rows: list[tuple[int, int]], num_steps: int = 3, **changes: Any) -> Step:
    return step(step_id, [(lane, count, True) for lane, count in rows], num_steps=num_steps, **changes)


def _tokens(*token_ids: int) -> SampledTokens:
    return SampledTokens(token_ids=int32(token_ids))


def test_rows_take_part_until_their_grants_are_used_up() -> None:
    table = _table(_stopping(0, 1), _stopping(2, 3))
    lease = Lease(table, _lease(2, [(2, 1), (0, 3)]))
    told = []
    while (iteration := lease.next_iteration()) is not None:
        told.append((iteration.rows.lanes.tolist(), iteration.rows.starts.tolist()))
        tokens = _tokens(*(10 * iteration.number + lane for lane in iteration.rows.lanes.tolist()))
        told.append(iteration.told(tokens).token_ids.tolist())
        if lease.is_complete:
            break
    assert told == [([2, 0], [2, 2]), [2, 0], ([0], [3]), [-1, 10], ([0], [4]), [-1, 20]]
    assert table.num_known.tolist() == [6, 0, 4, 0]


def test_a_stop_id_ends_a_row_and_all_of_them_the_lease() -> None:
    table = _table(_stopping(0, 1, 7), _stopping(1, 3, 8, 9))
    lease = Lease(table, _lease(2, [(0, 3), (1, 3)]))
    first = lease.next_iteration()
    assert first is not None
    assert first.told(_tokens(7, 7)).token_ids.tolist() == [7, 7]
    second = lease.next_iteration()
    assert second is not None
    assert second.rows.lanes.tolist() == [1]
    assert second.told(_tokens(9)).token_ids.tolist() == [-1, 9]
    assert lease.next_iteration() is None
    # The next lease knows, too.
    third = Lease(table, _lease(3, [(0, 2), (1, 2)], 2))
    assert third.next_iteration() is None


def test_what_a_row_computed_before_its_stop_id_was_known_is_not_told() -> None:
    table = _table(_stopping(0, 1, 7), _stopping(1, 3))
    lease = Lease(table, _lease(2, [(0, 3), (1, 3)]))
    first, second = lease.next_iteration(), lease.next_iteration()
    assert first is not None
    assert second is not None
    assert second.rows.lanes.tolist() == [0, 1]
    logprobs = Logprobs(counts=int32([2, 1]), token_ids=int32([5, 6, 9]), values=np.zeros(3, np.float32))
    assert first.told(_tokens(7, 8)).token_ids.tolist() == [7, 8]
    told = second.told(SampledTokens(token_ids=int32([5, 9]), logprobs=logprobs))
    assert told.token_ids.tolist() == [-1, 9]
    assert told.logprobs is not None
    assert (told.logprobs.counts.tolist(), told.logprobs.token_ids.tolist()) == ([0, 1], [9])


def test_a_stop_id_counts_only_after_min_tokens() -> None:
    table = _table(_stopping(0, 1, 7, min_tokens=2))
    lease = Lease(table, _lease(2, [(0, 3)]))
    # The first output token is at position 2, so that 4 is the first that may stop.
    for position, has_ended in ((3, False), (4, True)):
        iteration = lease.next_iteration()
        assert iteration is not None
        assert (iteration.rows.starts + 1).tolist() == [position]
        iteration.told(_tokens(7))
        assert bool(table.ends.has_ended[0]) == has_ended


def test_a_lanes_next_request_is_not_ended_by_a_late_token_of_the_last() -> None:
    table = _table(_stopping(0, 1, 7))
    iteration = Lease(table, _lease(2, [(0, 2)], 2)).next_iteration()
    assert iteration is not None
    successor = admission(0, 2, block_ids=(5,), incarnation=8, sampling=sampling(stop_token_ids=int32([7])))
    table.apply(step(3, [(0, 2, True)], released_lanes=int32([0]), admissions=(successor,)))
    assert iteration.told(_tokens(7)).token_ids.tolist() == [7]
    assert not table.ends.has_ended[0]


def test_appended_blocks_go_with_the_first_iteration_or_apart() -> None:
    table = _table(_stopping(0, 1))
    appends: dict[str, Any] = {"append_lanes": int32([0]), "append_block_ids": int32([9])}
    first = Lease(table, _lease(2, [(0, 3)], **appends)).next_iteration()
    assert first is not None
    assert first.rows.appends.block_ids.tolist() == [9]
    appends["append_block_ids"] = int32([10])
    lease = Lease(table, _lease(3, [(0, 3)], **appends))
    changes = lease.take_changes()
    assert changes is not None
    assert (changes.appends.block_ids.tolist(), len(changes.lanes)) == ([10], 0)
    assert lease.take_changes() is None


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([(0, 3)], {"num_steps": 65}, "num_steps is 65, but must be at most 64"),
        ([(0, 4)], {}, "row_num_tokens of lane 0 is 4, but must be at most 3, the steps of the lease"),
        ([(0, 7)], {"num_steps": 7}, "end of the row of lane 0 is 9, but must be at most 8, the slots"),
        ([(0, 3), (0, 3)], {}, "row_lanes is 0, but must name each lane once"),
        ([(1, 3)], {}, "row_lanes is 1, but must name lanes that are held"),
        ([(0, 0)], {}, "row_num_tokens is 0, but must be in"),
        (
            [(0, 3)],
            {"row_samples": np.zeros(1, np.bool_)},
            "must be 1: the step has rows that are no decodes",
        ),
        ([(0, 3)], {"admissions": (admission(1, 1, block_ids=(9,)),)}, "must be 1: the step has rows"),
    ],
)
def test_a_lease_that_lanes_cannot_run_is_refused(
    rows: list[tuple[int, int]], changes: dict[str, Any], message: str
) -> None:
    table = _table(_stopping(0, 1))
    with pytest.raises(ProtocolError, match=message):
        Lease(table, _lease(2, rows, **changes))


def test_a_grant_past_the_length_limit_is_refused() -> None:
    table = _table(admission(0, 2, max_total_tokens=4))
    with pytest.raises(
        ProtocolError, match="tokens with those sampled of lane 0 is 5, but must be at most 4"
    ):
        Lease(table, _lease(2, [(0, 2)], 2))


def test_a_lane_with_a_prompt_to_compute_cannot_be_leased() -> None:
    table = SequenceTable(LIMITS)
    table.apply(step(1, [(0, 1, False)], admissions=(admission(0, 3),)))
    with pytest.raises(ProtocolError, match="tokens computed of lane 0 is 1, but must be 2"):
        Lease(table, _lease(2, [(0, 2)], 2))
