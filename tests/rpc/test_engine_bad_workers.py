"""The engine when a worker says what none may: it ends that worker's epoch, and no other group notices."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2 as worker_pb

from scheduler_svc.errors import UnfitWorkerError
from tests.rpc.engine_bench import (
    FrontEndProbe,
    attached,
    new_request,
    num_running,
    run_until_it_fails,
    running_engine,
    wait_until,
)
from tests.stand_in_lanes import StandInLimits, expected_tokens
from tests.stand_in_worker import StandInWorker

_SERVICE = worker_pb.DESCRIPTOR.services_by_name["WorkerService"].full_name


class _LyingWorker(StandInWorker):
    """Ends the rows of its first long lease at once, and goes on as if they had ended."""

    lie = ""
    """What it lied about."""

    async def _run_iteration(self, step: worker_pb.Step, iteration: int, epoch: Any) -> bool:
        if self.lie or step.num_steps <= 2:
            return await super()._run_iteration(step, iteration, epoch)
        self.lie = f"step {step.step_id}"
        for number in (0, 1):
            ended = np.full(len(step.row_samples), -1, "<i4").tobytes()
            told = worker_pb.StepResult(
                step_id=step.step_id, token_ids=ended, iteration=number, num_iterations=1
            )
            epoch.outgoing.put_nowait(worker_pb.RunStepsResponse(result=told))
        return True


@pytest.fixture
async def bad_worker() -> AsyncIterator[StandInWorker]:
    """Run a second stand-in worker, of which nothing is asked at the end."""
    worker = StandInWorker()
    await worker.start()
    yield worker
    await worker.stop()


def _serving(probe: FrontEndProbe) -> list[bool]:
    return [group.is_serving for group in probe.infos[-1].groups]


@pytest.mark.parametrize(
    "limits", [{"num_blocks": 0}, {"max_num_seqs": 0}, {"max_num_batched_tokens": 2**24 + 1}]
)
async def test_a_bad_hello_keeps_its_group_from_serving_and_no_other(
    worker: StandInWorker, bad_worker: StandInWorker, limits: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad_worker.limits = StandInLimits(**limits)
    ((field, value),) = limits.items()
    async with (
        running_engine(worker.address, bad_worker.address) as engine,
        attached(engine) as probe,
    ):
        await wait_until(lambda: _serving(probe) == [True, False] and len(bad_worker.hellos) > 2)
        reason = (
            f"worker {bad_worker.address} does not fit: the worker's {field} is {value}, but must be in ["
        )
        assert probe.infos[-1].groups[1].reason.startswith(reason)
        assert sum(reason in line for line in caplog.messages) == 1
        await probe.submit(new_request(1, 3, seed=1, max_tokens=5))
        await probe.wait_ended(1)
        assert probe.tokens[1] == expected_tokens(1, 3, 5)
        bad_worker.limits = StandInLimits()
        await wait_until(lambda: _serving(probe) == [True, True])


async def test_a_bad_hello_of_the_only_group_at_the_start_is_fatal(worker: StandInWorker) -> None:
    worker.limits = StandInLimits(num_blocks=0)
    with pytest.raises(UnfitWorkerError, match=f"{worker.address}.*num_blocks is 0, but must be in"):
        await run_until_it_fails(worker.address)


async def test_rows_that_a_lease_ends_too_early_cost_the_epoch_and_what_came_behind() -> None:
    worker = _LyingWorker()
    worker.seems_far_away = True
    await worker.start()
    async with running_engine(worker.address, max_lease_steps=8) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(*(new_request(handle, 3, seed=handle, max_tokens=60) for handle in (1, 2)))
        await probe.wait_ended(1, 2)
        assert {1: expected_tokens(1, 3, 60), 2: expected_tokens(2, 3, 60)} == probe.tokens
        reason = f"the worker answered {worker.lie} wrongly: it ends 2 rows that go on"
        assert [info.reason for info in probe.infos if worker.lie in info.reason] == [
            f"worker {worker.address}: {reason}"
        ]
        assert (await engine.state()).workers[0].num_epochs_lost == 1
    await worker.stop()
    assert worker.faults == []


async def test_an_absurd_time_ends_the_epoch_and_the_state_can_be_told(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=5))
        await wait_until(lambda: num_running(engine) == 1)
        lie = worker_pb.StepResult(step_id=1, num_iterations=1, is_last=True, busy_time_ns=2**64 - 1)
        lie.token_ids = np.array([1], "<i4").tobytes()
        worker.send(worker_pb.RunStepsResponse(result=lie))
        reason = f"step 1 wrongly: busy_time_ns is {2**64 - 1}, but must be at most {86_400 * 10**9}"
        await wait_until(lambda: any(reason in info.reason for info in probe.infos))
        worker.may_run.set()
        await probe.wait_ended(1)
        assert probe.tokens[1] == expected_tokens(1, 3, 5)
        assert (await engine.state()).workers[0].num_epochs_lost == 1


async def test_a_message_that_cannot_be_read_ends_the_epoch(worker: StandInWorker) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([_unreadable_worker()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        running_engine(worker.address, f"127.0.0.1:{port}") as engine,
        attached(engine) as probe,
    ):
        reason = "the worker sent a message that cannot be read"
        await wait_until(lambda: probe.infos[-1].groups[1].reason == reason)
        assert _serving(probe) == [True, False]
        await probe.submit(new_request(1, 3, seed=1, max_tokens=5))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_LENGTH
    await server.stop(grace=None)


def _unreadable_worker() -> grpc.GenericRpcHandler:
    async def run_steps(requests: Any, context: Any) -> AsyncIterator[bytes]:
        del context
        async for _ in requests:
            yield b"\xff"

    handlers: dict[str, Any] = {"RunSteps": grpc.stream_stream_rpc_method_handler(run_steps)}
    return grpc.method_handlers_generic_handler(_SERVICE, handlers)
