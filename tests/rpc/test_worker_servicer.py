"""The worker's step stream over a real gRPC server, with a fake runner."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from stepwire.worker.v1 import worker_service_pb2 as pb

from tests.rpc.fake_model_runner import FakeModelRunner
from tests.rpc.worker_harness import (
    HELLO,
    INFO,
    LIMITS,
    Worker,
    admission,
    end_of,
    int32_bytes,
    result_of,
    rows,
    serving,
    until,
)
from worker_svc import errors
from worker_svc.rpc.compute_thread import ComputeThread
from worker_svc.rpc.servicer import Serving, WorkerServicer
from worker_svc.rpc.status import STATUS_CODES
from worker_svc.runner.step_executor import StepExecutor

REFUSED = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    """A served worker; its parameter, if any, is the time between heartbeats in seconds."""
    async with serving(heartbeat_seconds=getattr(request, "param", 60.0)) as worker:
        yield worker


async def test_hellos_then_one_result_a_step_in_order(worker: Worker) -> None:
    call, hello = await worker.open()
    assert (hello.config_hash, hello.max_model_len, hello.num_blocks) == ("abc", 40, 20)
    assert abs(hello.worker_epoch - time.time_ns()) < 60e9
    await call.write(rows(1, (2, 3), (0, 3), admissions=[admission(0), admission(2)]))
    await call.write(rows(2, (0, 1), (2, 1)))
    assert await result_of(call) == (1, [2003, 3])
    assert await result_of(call) == (2, [4, 2004])
    await call.done_writing()
    assert await end_of(call) == (grpc.StatusCode.OK, "")


async def test_a_stream_runs_more_steps_than_may_be_in_flight(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    for step_id in range(2, 9):
        assert await result_of(call) == (step_id - 1, [step_id + 1])
        await call.write(rows(step_id, (0, 1)))
    assert await result_of(call) == (8, [10])


async def test_a_step_without_rows_is_answered(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    await call.write(rows(2, released_lanes=int32_bytes(0)))
    assert await result_of(call) == (1, [3])
    assert await result_of(call) == (2, [])


@pytest.mark.parametrize(
    ("changes", "details"),
    [
        ({"config_hash": "xyz"}, "config_hash: the engine expects xyz, the worker has abc"),
        ({"vocab_size": 1}, "vocab_size: the engine expects 1, the worker has 9999"),
        ({"protocol_version": 2}, "protocol_version: the engine expects 2, the worker has 1"),
    ],
)
async def test_an_engine_of_another_model_is_refused(
    worker: Worker, changes: dict[str, Any], details: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.open(**changes)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, details)
    await worker.open()


async def test_another_tokenizer_is_only_logged(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    await worker.open(tokenizer_hash="zzz")
    assert "tokenizer_hash: the engine has 'zzz', the worker's model folder ''" in caplog.messages


async def test_a_stream_that_does_not_begin_with_a_hello_is_refused(worker: Worker) -> None:
    call = worker.stub.RunSteps()
    await call.write(rows(1))
    assert await end_of(call) == (REFUSED, "first message is step, but must be a hello")


async def test_a_second_hello_is_refused(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(pb.RunStepsRequest(hello=HELLO))
    assert await end_of(call) == (
        REFUSED,
        "message is hello, but must be a step or a heartbeat after the hello",
    )


async def test_a_newer_engine_supersedes_an_older_one(worker: Worker) -> None:
    old, old_hello = await worker.open()
    await old.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(old) == (1, [3])
    new, new_hello = await worker.open(fencing_number=11)
    assert new_hello.worker_epoch > old_hello.worker_epoch
    assert await end_of(old) == (
        grpc.StatusCode.ABORTED,
        "superseded by the engine with fencing_number 11",
    )
    await new.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(new) == (1, [3])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.open()
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert caught.value.details() == (
        "fencing_number is 10, but must be at least 11: a newer engine has taken over"
    )
    await new.write(rows(2, (0, 1)))
    assert await result_of(new) == (2, [4])


async def test_an_older_engine_is_taken_again_once_the_newer_one_has_gone() -> None:
    async with serving(fencing_hold_seconds=0.2) as worker:
        new, _ = await worker.open(fencing_number=11)
        new.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.open()
        assert caught.value.code() == grpc.StatusCode.ABORTED
        refused_seconds = time.monotonic()
        while True:
            try:
                old, _ = await worker.open()
                break
            except grpc.aio.AioRpcError:
                assert time.monotonic() - refused_seconds < 5
        await old.write(rows(1, (0, 3), admissions=[admission(0)]))
        assert await result_of(old) == (1, [3])
        newest, _ = await worker.open(fencing_number=11)
        assert (await end_of(old))[0] == grpc.StatusCode.ABORTED
        newest.cancel()


async def test_the_same_engine_may_come_again(worker: Worker) -> None:
    old, _ = await worker.open()
    new, _ = await worker.open()
    assert (await end_of(old))[0] == grpc.StatusCode.ABORTED
    await new.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(new) == (1, [3])


async def test_old_steps_are_dropped_before_the_first_new_one(worker: Worker) -> None:
    worker.runner.gate.clear()
    old, _ = await worker.open()
    await old.write(rows(1, (0, 3), admissions=[admission(0)]))
    await old.write(rows(2, (0, 1)))
    await until(lambda: worker.runner.num_launched == 1)
    new, _ = await worker.open(fencing_number=11)
    await new.write(rows(1, (0, 3), admissions=[admission(0)]))
    worker.runner.gate.set()
    assert await result_of(new) == (1, [3])
    assert worker.runner.num_launched == 2
    assert (await end_of(old))[0] == grpc.StatusCode.ABORTED


async def test_a_gap_in_the_step_ids_ends_the_stream_but_not_the_worker(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(call) == (1, [3])
    await call.write(rows(3, (0, 1)))
    assert await end_of(call) == (REFUSED, "step_id is 3, but must be 2: it grows by one")
    again, _ = await worker.open()
    await again.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(again) == (1, [3])


async def test_bytes_that_are_no_array_end_the_stream(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(pb.RunStepsRequest(step=pb.Step(step_id=1, row_lanes=b"\0")))
    assert await end_of(call) == (REFUSED, "size of row_lanes in bytes is 1, but must be a multiple of 4")


async def test_more_steps_in_flight_than_told_end_the_stream(worker: Worker) -> None:
    worker.runner.gate.clear()
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    for step_id in (2, 3, 4):
        await call.write(rows(step_id, (0, 1)))
    assert await end_of(call) == (REFUSED, "steps in flight is 4, but must be at most max_steps_in_flight, 3")


async def test_a_failing_runner_ends_the_stream_but_not_the_worker(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.runner.is_failing = True
    worker.runner.gate.clear()  # else the stream may have ended before the second step is written
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    await call.write(rows(2, (0, 1)))
    worker.runner.gate.set()
    assert await end_of(call) == (
        grpc.StatusCode.INTERNAL,
        "step 1 failed: RuntimeError: the device is on fire",
    )
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "step 1 failed"
    worker.runner.is_failing = False
    again, _ = await worker.open()
    await again.write(rows(1, (0, 3), admissions=[admission(0)]))
    assert await result_of(again) == (1, [3])


@pytest.mark.parametrize("worker", [0.02], indirect=True)
async def test_heartbeats_go_on_while_a_step_is_computed(worker: Worker) -> None:
    worker.runner.gate.clear()
    call, _ = await worker.open()
    await call.write(rows(1, (0, 3), admissions=[admission(0)]))
    await call.write(pb.RunStepsRequest(heartbeat=pb.Heartbeat(sequence=1)))
    await until(lambda: worker.runner.num_launched == 1)
    sequences = [(await asyncio.wait_for(call.read(), 5)).heartbeat.sequence for _ in range(5)]
    assert sequences == [1, 2, 3, 4, 5]
    worker.runner.gate.set()
    while (answer := await asyncio.wait_for(call.read(), 5)).WhichOneof("message") == "heartbeat":
        pass
    assert answer.result.step_id == 1


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_the_end_of_a_stream_frees_its_lanes(worker: Worker, is_cancelled: bool) -> None:
    async def lanes_held() -> int:
        info = await worker.stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
        return int(info.num_lanes_held)

    call, hello = await worker.open()
    await call.write(rows(1, (0, 3), (1, 3), admissions=[admission(0), admission(1)]))
    assert await result_of(call) == (1, [3, 1003])
    info = await worker.stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
    assert (info.num_lanes_held, info.num_steps, info.hello) == (2, 1, hello)
    if is_cancelled:
        call.cancel()
    else:
        await call.done_writing()
    deadline = time.monotonic() + 5
    while await lanes_held() != 0:
        assert time.monotonic() < deadline
    info = await worker.stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
    assert info.hello.worker_epoch == 0


async def test_a_message_may_be_larger_than_grpc_s_own_limit(worker: Worker) -> None:
    call, _ = await worker.open()
    await call.write(pb.RunStepsRequest(step=pb.Step(step_id=1, row_lanes=bytes(5 * 1024 * 1024))))
    code, details = await end_of(call)
    # Refused by our own code, which saw it.
    assert code != grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details == "number of row_num_tokens is 0, but must be that of row_lanes, 1310720"


async def test_a_stream_that_grpc_drops_while_it_writes_is_ended() -> None:
    class Context:
        def add_done_callback(self, callback: Callable[[Any], None]) -> None:
            self.callback = callback

    async def requests() -> AsyncIterator[pb.RunStepsRequest]:
        yield pb.RunStepsRequest(hello=HELLO)
        await asyncio.sleep(60)

    servicer, context = WorkerServicer(), Context()
    compute = ComputeThread(StepExecutor(LIMITS, FakeModelRunner()))
    servicer.start_serving(Serving(info=INFO, compute=compute))
    responses = servicer.RunSteps(requests(), context)
    epoch = (await anext(responses)).hello.worker_epoch
    info = await servicer.GetWorkerInfo(pb.GetWorkerInfoRequest(), context)
    assert info.hello.worker_epoch == epoch > 0
    context.callback(context)
    info = await servicer.GetWorkerInfo(pb.GetWorkerInfoRequest(), context)
    assert info.hello.worker_epoch == 0
    assert [response async for response in responses] == []


def test_every_error_of_a_stream_has_a_status_code() -> None:
    def leaves(cls: type[errors.WorkerError]) -> set[type[errors.WorkerError]]:
        below = cls.__subclasses__()
        return set().union(*map(leaves, below)) if below else {cls}

    of_start_up = leaves(errors.StartupError)
    assert set(STATUS_CODES) == leaves(errors.WorkerError) - of_start_up
