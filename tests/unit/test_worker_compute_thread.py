"""The compute thread with a device that has a queue of its own: what is launched when."""

import queue

import pytest

from tests.rpc.fake_model_runner import FakeModelRunner
from tests.worker_steps import admission, step
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import StepResult
from worker_svc.errors import WorkerError
from worker_svc.rpc.compute_thread import ComputeThread, StepEpoch
from worker_svc.runner.step_executor import StepExecutor

LIMITS = TableLimits(
    block_size=4, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40, vocab_size=100
)


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
