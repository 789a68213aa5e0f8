"""The engine when its worker is not there, wrong, dead, hung, lying, or back again."""

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2 as worker_pb

from scheduler_svc.config import ConfigError
from scheduler_svc.core.plan import StepResult
from scheduler_svc.engine.values import ResultArrived
from scheduler_svc.errors import ModelMismatchError
from tests.rpc.engine_bench import (
    attached,
    bench_engine,
    break_until_ready,
    new_request,
    num_preempted,
    num_running,
    num_waiting,
    run_until_it_fails,
    running_engine,
    wait_until,
)
from tests.stand_in_lanes import StandInLimits, expected_tokens
from tests.stand_in_worker import StandInWorker

_MS = 10**6


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Hold a port on which nobody listens."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


async def test_before_the_first_worker_requests_are_refused_and_then_served(silent_port: int) -> None:
    address = f"127.0.0.1:{silent_port}"
    async with running_engine(address) as engine, attached(engine) as probe:
        await wait_until(lambda: "UNAVAILABLE" in probe.infos[-1].reason)
        assert (probe.infos[-1].is_ready, probe.infos[-1].max_model_len) == (False, 0)
        await probe.submit(new_request(1, 3))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_UNAVAILABLE
        assert address in probe.ended[1].message
        state = await engine.state()
        assert (state.num_blocks, state.workers[0].is_serving) == (0, False)
        worker = StandInWorker()
        await worker.start(silent_port)
        await probe.wait_ready()
        await probe.submit(new_request(2, 3, seed=2, max_tokens=4))
        await probe.wait_ended(2)
        assert probe.tokens == {2: expected_tokens(2, 3, 4)}
        await worker.stop()
    assert worker.faults == []


@pytest.mark.parametrize("max_steps_in_flight", [1, 2, 3, 4])
async def test_requests_survive_a_broken_stream_and_get_each_token_once(
    worker: StandInWorker, max_steps_in_flight: int
) -> None:
    worker.step_seconds = 0.001
    async with (
        running_engine(worker.address, max_steps_in_flight=max_steps_in_flight) as engine,
        attached(engine) as probe,
    ):
        await probe.wait_ready()
        await probe.submit(*(new_request(handle, 5, seed=handle, max_tokens=30) for handle in range(1, 13)))
        for num_tokens in (4, 14):
            await probe.wait_tokens(1, num_tokens)
            await break_until_ready(worker, probe)
        await probe.wait_ended(*range(1, 13))
        for handle in range(1, 13):
            assert probe.tokens[handle] == expected_tokens(handle, 5, 30)
            assert probe.ended[handle].reason == pb.REQUEST_END_LENGTH
        assert [info.is_ready for info in probe.infos][-5:] == [True, False, True, False, True]
        # grpc.aio hides the worker's own words where a write was under way.
        assert probe.infos[-2].reason.startswith(f"worker {worker.address}: INTERNAL: ")
        # One engine start, one fencing number.
        assert len(worker.hellos) == 3
        assert len({hello.fencing_number for hello in worker.hellos}) == 1
        await engine.wait_idle()
        assert worker.num_lanes_held == 0


async def test_a_broken_stream_leaves_no_task_behind(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        before = asyncio.all_tasks()
        for num_hellos in (2, 3, 4):
            worker.break_stream()
            await wait_until(lambda: len(worker.hellos) == num_hellos and probe.infos[-1].is_ready)  # noqa: B023
        await wait_until(lambda: len(asyncio.all_tasks()) <= len(before))


async def test_while_the_worker_is_gone_requests_wait_and_can_end(worker: StandInWorker) -> None:
    worker.step_seconds = 0.001
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=50), new_request(2, 3, seed=2))
        await probe.wait_tokens(2, 1)
        await worker.stop()
        await wait_until(lambda: not probe.infos[-1].is_ready)
        await probe.submit(new_request(3, 3, seed=3, max_tokens=5), new_request(4, 3, timeout_ns=20 * _MS))
        await probe.end(2, pb.END_REASON_ABORT)
        await probe.wait_ended(2, 4)
        assert probe.ended[2].reason == pb.REQUEST_END_ABORT
        assert probe.ended[4].reason == pb.REQUEST_END_DEADLINE
        assert (num_running(engine), num_preempted(engine), num_waiting(engine)) == (0, 1, 1)
        successor = StandInWorker()
        await successor.start(int(worker.address.rpartition(":")[2]))
        await probe.wait_ended(1, 3)
        assert probe.tokens[1] == expected_tokens(1, 3, 50)
        assert probe.tokens[3] == expected_tokens(3, 3, 5)
        await engine.wait_idle()
        await successor.stop()
    assert successor.faults == []


async def test_a_request_that_a_smaller_worker_cannot_hold_ends(worker: StandInWorker) -> None:
    worker.step_seconds = 0.001
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, max_tokens=50), new_request(2, 3, seed=2, max_tokens=5))
        await probe.wait_tokens(1, 1)
        worker.limits = StandInLimits(max_model_len=16)
        worker.break_stream()
        await probe.wait_ended(1, 2)
        assert probe.ended[1].reason == pb.REQUEST_END_INVALID
        assert "16 (max_model_len)" in probe.ended[1].message
        assert probe.tokens[2] == expected_tokens(2, 3, 5)
        assert probe.infos[-1].max_model_len == 16


async def test_a_request_that_loses_too_many_workers_ends(worker: StandInWorker) -> None:
    worker.may_run.clear()
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, max_tokens=60))
        for _ in range(3):
            await wait_until(lambda: worker.num_in_flight > 0)
            await break_until_ready(worker, probe)
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_INTERNAL
        assert probe.ended[1].message == "3 workers were lost while they ran this request"
        await probe.wait_ready()


async def test_a_wrong_model_at_the_start_is_fatal_and_names_both(worker: StandInWorker) -> None:
    worker.limits = StandInLimits(config_hash="badc0de")
    with pytest.raises(ModelMismatchError, match=f"{worker.address}.*badc0de.*c0ffee"):
        await run_until_it_fails(worker.address)


async def test_a_worker_that_does_not_refuse_us_is_refused_by_us(worker: StandInWorker) -> None:
    worker.checks_hello = False
    worker.limits = StandInLimits(vocab_size=999)
    with pytest.raises(ModelMismatchError, match="vocab_size is 1000, but the worker's is 999"):
        await run_until_it_fails(worker.address)


async def test_a_wrong_model_later_is_a_reason_not_to_serve(worker: StandInWorker) -> None:
    worker.step_seconds = 0.001
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=40))
        await probe.wait_tokens(1, 1)
        worker.limits = StandInLimits(config_hash="badc0de")
        worker.break_stream()
        await wait_until(lambda: "badc0de" in probe.infos[-1].reason)
        assert "badc0de" in (await engine.state()).workers[0].reason
        worker.limits = StandInLimits()
        await probe.wait_ended(1)
        assert probe.tokens[1] == expected_tokens(1, 3, 40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 9}, "--max-num-seqs is 9, but must be at most 8"),
        ({"max_num_batched_tokens": 33}, "--max-num-batched-tokens is 33, but must be at most 32"),
        ({"max_num_batched_tokens": 7}, "--max-num-batched-tokens is 7, but must be at least .* 8"),
        ({"max_model_len": 65}, "--max-model-len is 65, but must be at most 64"),
        ({"max_steps_in_flight": 4}, "--max-steps-in-flight is 4, but must be at most 3"),
    ],
)
async def test_a_flag_above_the_workers_limit_is_fatal_and_names_both(
    worker: StandInWorker, options: dict[str, Any], message: str
) -> None:
    worker.limits = StandInLimits(max_steps_in_flight=3)
    with pytest.raises(ConfigError, match=message):
        await run_until_it_fails(worker.address, **options)


async def test_a_worker_that_hangs_is_given_up(worker: StandInWorker) -> None:
    link = {"heartbeat_seconds": 0.02, "silence_seconds": 0.2}
    async with running_engine(worker.address, link=link) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.is_silent = True
        await probe.submit(new_request(1, 3, seed=1, max_tokens=5))
        await wait_until(lambda: "sent nothing for 0.2 s" in probe.infos[-1].reason)
        worker.is_silent = False
        await probe.wait_ended(1)
        assert probe.tokens[1] == expected_tokens(1, 3, 5)


async def test_heartbeats_keep_an_idle_stream_alive() -> None:
    worker = StandInWorker(heartbeat_seconds=0.02)
    await worker.start()
    link = {"heartbeat_seconds": 0.02, "silence_seconds": 0.2}
    async with running_engine(worker.address, link=link):
        await wait_until(lambda: worker.num_heartbeats >= 20)
        assert len(worker.hellos) == 1
    await worker.stop()


async def test_time_in_which_the_engine_stood_still_is_not_held_against_the_worker(
    worker: StandInWorker,
) -> None:
    link = {"heartbeat_seconds": 0.02, "silence_seconds": 0.3}
    async with running_engine(worker.address, link=link), asyncio.timeout(10):
        await wait_until(lambda: worker.num_heartbeats >= 2)
        time.sleep(0.8)  # noqa: ASYNC251 # stands still, as a process that was stopped
        num_heartbeats = worker.num_heartbeats
        await wait_until(lambda: worker.num_heartbeats >= num_heartbeats + 5)
        assert len(worker.hellos) == 1


async def test_a_step_that_takes_too_long_ends_the_epoch(worker: StandInWorker) -> None:
    link = {"heartbeat_seconds": 0.02}
    async with (
        running_engine(
            worker.address, link=link, step_limit_seconds=0.1, first_step_limit_seconds=0.3
        ) as engine,
        attached(engine) as probe,
    ):
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=5))
        await wait_until(lambda: len(worker.hellos) == 2)
        assert any("step 1 took over 0.3 s" in info.reason for info in probe.infos)
        worker.may_run.set()
        await probe.wait_ended(1)
        assert probe.tokens[1] == expected_tokens(1, 3, 5)


@pytest.mark.parametrize(
    ("step_id", "tokens", "reason"),
    [
        (2, [1], "the worker answered step 2, but the oldest in flight is 1"),
        (1, [1, 2], "answered step 1 with 2 tokens, but 1 were asked for"),
        (1, [1000], "answered step 1 with a token outside the vocabulary"),
        (1, [-1], "answered step 1 with a token outside the vocabulary"),
    ],
)
async def test_a_lying_worker_loses_its_epoch_and_nothing_of_it_is_told(
    worker: StandInWorker, step_id: int, tokens: list[int], reason: str
) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=5))
        await wait_until(lambda: num_running(engine) == 1)
        lie = worker_pb.StepResult(
            step_id=step_id, token_ids=np.array(tokens, "<i4").tobytes(), num_iterations=1, is_last=True
        )
        worker.send(worker_pb.RunStepsResponse(result=lie))
        await wait_until(lambda: any(reason in info.reason for info in probe.infos))
        worker.may_run.set()
        await probe.wait_ended(1)
        assert probe.tokens[1] == expected_tokens(1, 3, 5)


async def test_a_bug_in_the_loop_ends_it() -> None:
    engine, _ = bench_engine("127.0.0.1:1")
    engine.post(ResultArrived(group=0, result=StepResult(step_id=1, token_ids=np.zeros(0, np.int32))))
    with pytest.raises(AssertionError, match="a result needs a worker"):
        async with asyncio.timeout(10):
            await engine.run()
