"""The engine with a worker far away: leases, and what takes them over."""

import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from tests.rpc.engine_bench import (
    attached,
    break_until_ready,
    new_request,
    num_running,
    running_engine,
    wait_until,
)
from tests.stand_in_lanes import StandInLimits, expected_tokens
from tests.stand_in_worker import StandInWorker
from tools.link_proxy import LinkProxy

LIMITS = StandInLimits(num_blocks=256, max_num_seqs=16, max_model_len=256, max_num_batched_tokens=256)
DELAY_SECONDS = 0.005
STEP_SECONDS = 0.004


@pytest.fixture
async def worker() -> AsyncIterator[StandInWorker]:
    """Run a stand-in worker that seems far away; it must have seen no fault at the end."""
    worker = StandInWorker(LIMITS)
    worker.seems_far_away = True
    await worker.start()
    yield worker
    await worker.stop()
    assert worker.faults == []


@pytest.fixture
async def far_worker() -> AsyncIterator[tuple[StandInWorker, str]]:
    """Run a stand-in worker behind a slow link; give it and its address through the link."""
    worker = StandInWorker(LIMITS, step_seconds=STEP_SECONDS)
    await worker.start()
    link = LinkProxy(worker.address, delay_seconds=DELAY_SECONDS)
    await link.start()
    yield worker, link.address
    await link.stop()
    await worker.stop()
    assert worker.faults == []


@pytest.mark.parametrize("max_steps_in_flight", [1, 2, 4])
@pytest.mark.parametrize("max_lease_steps", [1, 3, 16])
async def test_every_request_gets_its_own_tokens(
    worker: StandInWorker, max_steps_in_flight: int, max_lease_steps: int
) -> None:
    options = {"max_steps_in_flight": max_steps_in_flight, "max_lease_steps": max_lease_steps}
    async with running_engine(worker.address, **options) as engine, attached(engine) as probe:
        await probe.wait_ready()
        lengths = {handle: 5 + 7 * handle for handle in range(1, 13)}
        await probe.submit(
            *(new_request(handle, 3, seed=handle, max_tokens=count) for handle, count in lengths.items())
        )
        await probe.wait_ended(*lengths)
        for handle, count in lengths.items():
            assert probe.tokens[handle] == expected_tokens(handle, 3, count)
        await engine.wait_idle()
        assert (worker.leases.num_begun > 0) == (max_lease_steps > 1)
        assert worker.max_num_in_flight <= max_steps_in_flight + 1


async def test_stop_ids_and_aborts_within_leases(worker: StandInWorker) -> None:
    worker.step_seconds = 0.001
    async with running_engine(worker.address, max_lease_steps=16) as engine, attached(engine) as probe:
        await probe.wait_ready()
        stop_id = expected_tokens(1, 3, 40)[-1]
        stop_ids = np.array([stop_id], "<i4").tobytes()
        await probe.submit(
            new_request(1, 3, seed=1, max_tokens=200, sampling={"stop_token_ids": stop_ids}),
            new_request(2, 3, seed=2, max_tokens=200),
            new_request(3, 3, seed=3, max_tokens=150),
        )
        await wait_until(lambda: worker.leases.num_begun >= 2)
        worker.may_run.clear()
        await wait_until(lambda: worker.is_held and worker.num_in_flight == 2)
        num_take_overs = worker.leases.num_take_overs
        await probe.end(2, pb.END_REASON_ABORT)
        await wait_until(lambda: worker.leases.num_take_overs > num_take_overs)
        worker.may_run.set()
        await probe.wait_ended(1, 2, 3)
        assert probe.tokens[1] == expected_tokens(1, 3, 200)[: len(probe.tokens[1])]
        assert (probe.tokens[1][-1], probe.ended[1].reason) == (stop_id, pb.REQUEST_END_STOP)
        assert probe.tokens[3] == expected_tokens(3, 3, 150)
        assert probe.tokens[2] == expected_tokens(2, 3, 200)[: len(probe.tokens[2])]
        assert len(probe.tokens[2]) < 200
        assert worker.leases.num_ended_early > 0
        await engine.wait_idle()


async def test_an_aborted_request_leaves_its_lane_at_the_next_iteration(worker: StandInWorker) -> None:
    worker.step_seconds = 0.001
    async with running_engine(worker.address, max_lease_steps=16) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(*(new_request(handle, 3, seed=handle, max_tokens=200) for handle in (1, 2)))
        await wait_until(lambda: worker.leases.num_begun >= 2)
        worker.may_run.clear()
        await wait_until(lambda: worker.is_held and worker.num_in_flight == 2)
        await probe.end(1, pb.END_REASON_ABORT)
        await wait_until(lambda: worker.leases.num_take_overs == 1)
        assert num_running(engine) == 1
        worker.may_run.set()
        await wait_until(lambda: worker.num_lanes_held == 1)
        # The second one in any case; of the first an iteration may have been the last.
        assert worker.leases.num_ended_early >= 1
        await probe.wait_ended(1, 2)
        assert probe.tokens[2] == expected_tokens(2, 3, 200)


async def test_a_stream_that_breaks_within_a_lease_costs_no_token(worker: StandInWorker) -> None:
    worker.step_seconds = 0.001
    async with running_engine(worker.address, max_lease_steps=16) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(*(new_request(handle, 3, seed=handle, max_tokens=100) for handle in range(1, 5)))
        for num_tokens in (30, 60):
            await probe.wait_tokens(1, num_tokens)
            await break_until_ready(worker, probe)
        await probe.wait_ended(1, 2, 3, 4)
        assert [probe.tokens[handle] for handle in range(1, 5)] == [
            expected_tokens(handle, 3, 100) for handle in range(1, 5)
        ]
        assert worker.leases.num_begun > 10


@pytest.mark.parametrize("max_steps_in_flight", [1, 2, 4])
async def test_a_request_that_comes_during_leases_takes_over_at_the_next_iteration(
    worker: StandInWorker, max_steps_in_flight: int
) -> None:
    worker.step_seconds = 0.001
    async with (
        running_engine(worker.address, max_steps_in_flight=max_steps_in_flight, max_lease_steps=16) as engine,
        attached(engine) as probe,
    ):
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=240))
        await wait_until(lambda: worker.leases.num_begun >= 2)
        worker.may_run.clear()
        await wait_until(lambda: worker.is_held and worker.num_in_flight == max_steps_in_flight)
        num_steps = worker.num_steps
        # All credits are with leases, and yet the step that admits is sent.
        await probe.submit(new_request(2, 3, seed=2, max_tokens=200))
        await wait_until(lambda: worker.leases.num_take_overs == 1)
        worker.may_run.set()
        await wait_until(lambda: worker.num_lanes_held == 2)
        # One that was held before it could see, and the step that admits.
        assert worker.num_steps - num_steps <= 2
        assert worker.leases.num_ended_early >= max_steps_in_flight - 1
        await probe.wait_ended(1, 2)
        assert probe.tokens == {1: expected_tokens(1, 3, 240), 2: expected_tokens(2, 3, 200)}


async def test_the_state_tells_step_and_round_trip(far_worker: tuple[StandInWorker, str]) -> None:
    _, address = far_worker
    async with running_engine(address, max_lease_steps=16) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=40))
        await probe.wait_ended(1)
        state = (await engine.state()).workers[0]
        assert state.decode_time_ns == pytest.approx(1e9 * STEP_SECONDS)
        assert state.round_trip_time_ns >= 2e9 * DELAY_SECONDS
        assert state.device_idle_ratio == 0.0


@pytest.mark.long
async def test_a_far_worker_loses_next_to_nothing(far_worker: tuple[StandInWorker, str]) -> None:
    worker, address = far_worker
    async with running_engine(address, max_lease_steps=16) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(*(new_request(handle, 3, seed=handle, max_tokens=250) for handle in range(1, 9)))
        # The first steps are still single ones, until step and round trip are known.
        await wait_until(lambda: worker.leases.num_begun >= 2)
        num_steps, start = worker.num_steps, time.monotonic()
        await probe.wait_ended(*range(1, 9))
        seconds_lost = time.monotonic() - start - STEP_SECONDS * (worker.num_steps - num_steps)
    # Half the time where each step waits for the one before it; 1 % on an idle machine.
    assert seconds_lost < 0.25 * STEP_SECONDS * 240
