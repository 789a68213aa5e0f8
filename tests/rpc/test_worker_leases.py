"""Leases on the worker's step stream: iterations told, joined and taken over."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest
from stepwire.worker.v1 import worker_service_pb2 as pb

from scheduler_svc.engine.convert import result_from_pb
from tests.rpc.worker_harness import (
    Stream,
    Worker,
    admission,
    end_of,
    int32_bytes,
    result_of,
    rows,
    serving,
    until,
)
from worker_svc.batch.step import Logprobs, SampledTokens, StepResult
from worker_svc.rpc.compute_thread import ComputeThread
from worker_svc.rpc.convert import join_results, result_to_proto
from worker_svc.rpc.step_stream import StepStream


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async with serving() as worker:
        yield worker


async def _result(call: Stream) -> pb.StepResult:
    answer = await asyncio.wait_for(call.read(), 5)
    result: pb.StepResult = answer.result
    return result


async def test_every_iteration_is_told_with_its_times(worker: Worker) -> None:
    call, hello = await worker.open()
    assert hello.max_lease_steps == 64
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(call) == (1, [3])
    await call.write(rows(2, (0, 4), num_steps=4))
    told = list[int]()
    is_last, held_ns = False, 0
    while not is_last:
        result = await _result(call)
        assert (result.step_id, result.iteration) == (2, len(told))
        assert result.num_iterations >= 1
        assert result.busy_time_ns > 0
        assert result.held_time_ns > held_ns
        told += np.frombuffer(result.token_ids, "<i4").tolist()
        is_last, held_ns = result.is_last, result.held_time_ns
    assert told == [4, 5, 6, 7]


async def test_one_step_that_takes_over_needs_no_credit(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(call) == (1, [3])
    worker.runner.gate.clear()
    await call.write(rows(2, (0, 3), num_steps=3))
    # A lease that is taken over before its first iteration ends at once, and its credit comes back.
    await until(lambda: worker.runner.num_launched == 2)
    for step_id in (3, 4):
        await call.write(rows(step_id, (0, 3), num_steps=3))
    await call.write(rows(5, (0, 1), take_over=True))
    await call.write(rows(6, (0, 1), take_over=True))
    assert await end_of(call) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "steps in flight is 5, but must be at most max_steps_in_flight, 3",
    )


def test_a_stream_joins_the_iterations_that_wait_to_be_sent() -> None:
    def told(step_id: int, iteration: int, token_id: int) -> StepResult:
        sampled = SampledTokens(token_ids=np.array([token_id, token_id + 1], np.int32))
        is_last = iteration == 2
        return StepResult(
            step_id=step_id, sampled=sampled, step_time_ns=5, iteration=iteration, is_last=is_last
        )

    async def joined() -> list[pb.StepResult]:
        stream = StepStream(_NoCompute(), max_steps_in_flight=2, heartbeat_seconds=60)
        stream._arrivals_ns.extend((1, 2))
        for step_id in (1, 2):
            for iteration in range(3):
                stream._on_result(told(step_id, iteration, 10 * step_id + iteration))
        stream.end(None)
        return [message.result async for message in stream.responses(pb.WorkerHello(), _nothing())][1:]

    first, second = asyncio.run(joined())
    for result, step_id in ((first, 1), (second, 2)):
        assert (result.step_id, result.iteration, result.num_iterations, result.is_last) == (
            step_id,
            0,
            3,
            True,
        )
        assert result.token_ids == int32_bytes(*(10 * step_id + one for one in (0, 1, 1, 2, 2, 3)))
        assert result.step_time_ns == 15


class _NoCompute(ComputeThread):
    """Computes nothing."""

    def __init__(self) -> None:
        pass

    def close_epoch(self, epoch: object) -> None:
        del epoch


async def _nothing() -> AsyncIterator[pb.RunStepsRequest]:
    no_messages: tuple[pb.RunStepsRequest, ...] = ()
    for message in no_messages:
        yield message


def test_joined_results_come_apart_as_they_were() -> None:
    def told(iteration: int, token_ids: list[int], logprobs: Logprobs | None) -> StepResult:
        sampled = SampledTokens(token_ids=np.array(token_ids, np.int32), logprobs=logprobs)
        return StepResult(
            step_id=4, sampled=sampled, step_time_ns=1, iteration=iteration, is_last=iteration == 3
        )

    logprobs = Logprobs(
        counts=np.array([2, 0], np.int32),
        token_ids=np.array([7, 8], np.int32),
        values=np.array([-0.5, -1.5], np.float32),
    )
    results = [told(1, [7, 9], logprobs), told(2, [-1, 5], None), told(3, [7, -1], logprobs)]
    message = result_to_proto(results[0])
    for result in results[1:]:
        join_results(message, result_to_proto(result))
    parts = result_from_pb(message).parts()
    assert [(one.iteration, one.num_iterations, one.is_last) for one in parts] == [
        (1, 1, False),
        (2, 1, False),
        (3, 1, True),
    ]
    assert [one.token_ids.tolist() for one in parts] == [[7, 9], [-1, 5], [7, -1]]
    assert [one.logprobs and one.logprobs.counts.tolist() for one in parts] == [[2, 0], [0, 0], [2, 0]]
    assert [one.logprobs and one.logprobs.values.tolist() for one in parts] == [
        [-0.5, -1.5],
        [],
        [-0.5, -1.5],
    ]


def test_an_end_that_comes_alone_is_joined_too() -> None:
    first = result_to_proto(
        StepResult(
            step_id=4, sampled=SampledTokens(token_ids=np.array([7], np.int32)), step_time_ns=1, is_last=False
        )
    )
    end = StepResult(
        step_id=4,
        sampled=SampledTokens(token_ids=np.empty(0, np.int32)),
        step_time_ns=1,
        iteration=1,
        num_iterations=0,
    )
    join_results(first, result_to_proto(end))
    (part,) = result_from_pb(first).parts()
    assert (part.iteration, part.num_iterations, part.is_last) == (0, 1, True)
