"""The compute thread with a device that has a queue of its own: what is launched when."""

import queue

import pytest

from tests.rpc.fake_model_runner import FakeModelRunner
from tests.worker_steps import admission, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import StepResult
from worker_svc.errors import ProtocolError, WorkerError
from worker_svc.rpc.compute_thread import ComputeThread, StepEpoch
from worker_svc.runner.step_executor import StepExecutor

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40, vocab_size=100
)


Told = StepResult | WorkerError


@pytest.mark.parametrize(("num_steps_ahead", "launched_at_each_wait"), [(0, [1, 2, 3]), (1, [2, 3, 3])])
def test_steps_are_launched_ahead_of_the_oldest_as_far_as_the_device_takes_them(
    num_steps_ahead: int, launched_at_each_wait: list[int]
) -> None:
    runner = FakeModelRunner(num_steps_ahead)
    compute = ComputeThread(StepExecutor(LIMITS, runner))
    results: queue.SimpleQueue[StepResult | WorkerError] = queue.SimpleQueue()
    epoch = StepEpoch(on_result=results.put, on_failure=results.put)
    compute.submit(epoch, step(1, [(0, 6, True)], admissions=(admission(0, block_ids=(1, 2, 3)),)))
    compute.submit(epoch, step(2, [(0, 1, True)]))
    compute.submit(epoch, step(3, [(0, 1, True)]))
    compute.start()
    tokens = []
    for _ in range(3):
        result = results.get(timeout=5)
        assert isinstance(result, StepResult)
        tokens.append((result.step_id, result.sampled.token_ids.tolist()))
    assert tokens == [(1, [6]), (2, [7]), (3, [8])]
    assert runner.num_launched_at_waits == launched_at_each_wait
    assert compute.stop(5)


def test_a_step_that_comes_while_the_device_computes_is_launched_at_once() -> None:
    runner = FakeModelRunner(num_steps_ahead=1)
    runner.gate.clear()
    compute = ComputeThread(StepExecutor(LIMITS, runner))
    results: queue.SimpleQueue[StepResult | WorkerError] = queue.SimpleQueue()
    epoch = StepEpoch(on_result=results.put, on_failure=results.put)
    compute.start()
    compute.submit(epoch, step(1, [(0, 6, True)], admissions=(admission(0, block_ids=(1, 2, 3)),)))
    assert runner.is_awaited.wait(5)
    compute.submit(epoch, step(2, [(0, 1, True)]))
    runner.wait_launched(2)
    assert results.empty()
    runner.gate.set()
    answers = [results.get(timeout=5) for _ in range(2)]
    assert [answer.step_id for answer in answers if isinstance(answer, StepResult)] == [1, 2]
    compute.submit(epoch, step(3, [(0, 1, True)]))
    last = results.get(timeout=5)
    assert isinstance(last, StepResult)
    assert last.sampled.token_ids.tolist() == [8]
    assert compute.stop(5)


def test_a_late_close_of_an_old_epoch_leaves_the_new_one_alone() -> None:
    compute = ComputeThread(StepExecutor(LIMITS, FakeModelRunner()))
    results: queue.SimpleQueue[StepResult | WorkerError] = queue.SimpleQueue()
    old = StepEpoch(on_result=results.put, on_failure=results.put)
    new = StepEpoch(on_result=results.put, on_failure=results.put)
    first = step(1, [(0, 6, True)], admissions=(admission(0),))
    compute.submit(old, first)
    compute.close_epoch(old)
    compute.submit(new, first)
    compute.close_epoch(old)
    compute.submit(new, step(2, [(0, 1, True)]))
    compute.start()
    answers = [results.get(timeout=5) for _ in range(2)]
    assert [answer.step_id for answer in answers if isinstance(answer, StepResult)] == [1, 2]
    assert compute.num_lanes_held == 1
    assert compute.num_steps == 2
    assert compute.stop(5)


def _with_leases(
    num_steps_ahead: int,
) -> tuple[ComputeThread, FakeModelRunner, StepEpoch, "queue.SimpleQueue[Told]"]:
    """A thread that is not started, with a step queued that admits lane 0."""
    runner = FakeModelRunner(num_steps_ahead)
    compute = ComputeThread(StepExecutor(LIMITS, runner))
    results: queue.SimpleQueue[StepResult | WorkerError] = queue.SimpleQueue()
    epoch = StepEpoch(on_result=results.put, on_failure=results.put)
    first = admission(0, block_ids=range(1, 7), max_total_tokens=24)
    compute.submit(epoch, step(1, [(0, 6, True)], admissions=(first,)))
    return compute, runner, epoch, results


def _told(results: "queue.SimpleQueue[Told]", count: int) -> list[tuple[int, int, list[int], bool]]:
    """List (step, iteration, tokens, is last) of the next results."""
    told = []
    for _ in range(count):
        result = results.get(timeout=5)
        assert isinstance(result, StepResult)
        told.append((result.step_id, result.iteration, result.sampled.token_ids.tolist(), result.is_last))
    return told


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_a_lease_runs_to_its_end_before_the_step_behind_it(num_steps_ahead: int) -> None:
    compute, runner, epoch, results = _with_leases(num_steps_ahead)
    compute.submit(epoch, step(2, [(0, 3, True)], num_steps=3))
    compute.submit(epoch, step(3, [(0, 1, True)]))
    compute.start()
    assert _told(results, 5) == [
        (1, 0, [6], True),
        (2, 0, [7], False),
        (2, 1, [8], False),
        (2, 2, [9], True),
        (3, 0, [10], True),
    ]
    assert runner.num_launched == compute.num_steps == 5
    assert compute.stop(5)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_a_step_that_takes_over_ends_leases_that_have_not_begun(num_steps_ahead: int) -> None:
    compute, _, epoch, results = _with_leases(num_steps_ahead)
    compute.submit(epoch, step(2, [(0, 3, True)], num_steps=3))
    compute.submit(epoch, step(3, [(0, 2, True)], num_steps=2))
    compute.submit(epoch, step(4, [(0, 1, True)], takes_over=True))
    compute.start()
    assert _told(results, 4) == [(1, 0, [6], True), (2, 0, [], True), (3, 0, [], True), (4, 0, [7], True)]
    assert compute.stop(5)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_a_lease_that_took_over_runs_once_although_it_is_taken_over(num_steps_ahead: int) -> None:
    compute, _, epoch, results = _with_leases(num_steps_ahead)
    compute.submit(epoch, step(2, [(0, 3, True)], num_steps=3))
    compute.submit(epoch, step(3, [(0, 2, True)], num_steps=2, takes_over=True))
    compute.submit(epoch, step(4, [(0, 1, True)], takes_over=True))
    compute.start()
    assert _told(results, 5) == [
        (1, 0, [6], True),
        (2, 0, [], True),
        (3, 0, [7], False),
        (3, 1, [], True),
        (4, 0, [8], True),
    ]
    assert compute.stop(5)


def test_a_step_that_takes_over_ends_a_lease_at_its_next_boundary() -> None:
    compute, runner, epoch, results = _with_leases(0)
    compute.submit(epoch, step(2, [(0, 6, True)], num_steps=6))
    compute.start()
    assert _told(results, 2) == [(1, 0, [6], True), (2, 0, [7], False)]
    runner.gate.clear()
    compute.submit(epoch, step(3, [(0, 1, True)], takes_over=True))
    runner.gate.set()
    told: list[tuple[int, int, list[int], bool]] = []
    while not told or told[-1][0] != 3:
        told += _told(results, 1)
    assert [iteration for step_id, iteration, _, _ in told if step_id == 2] == list(range(1, len(told)))
    assert [is_last for _, _, _, is_last in told] == [False] * (len(told) - 2) + [True, True]
    num_run = 1 + sum(len(tokens) for step_id, _, tokens, _ in told if step_id == 2)
    assert told[-1][2] == [7 + num_run]
    assert compute.stop(5)


def test_a_lease_ends_with_its_epoch() -> None:
    compute, runner, epoch, results = _with_leases(0)
    runner.gate.clear()
    compute.submit(epoch, step(2, [(0, 6, True)], num_steps=6))
    compute.start()
    compute.close_epoch(epoch)
    successor = StepEpoch(on_result=results.put, on_failure=results.put)
    compute.submit(successor, step(1, [(0, 6, True)], admissions=(admission(0),)))
    runner.gate.set()
    assert _told(results, 1) == [(1, 0, [6], True)]
    assert compute.stop(5)


def test_a_lease_that_breaks_the_rules_ends_the_epoch() -> None:
    compute, _, epoch, results = _with_leases(0)
    compute.submit(epoch, step(2, [(0, 19, True)], num_steps=19))
    compute.start()
    assert isinstance(results.get(timeout=5), StepResult)
    error = results.get(timeout=5)
    assert isinstance(error, ProtocolError)
    assert "end of the row of lane 0 is 25, but must be at most 24" in str(error)
    assert compute.stop(5)
