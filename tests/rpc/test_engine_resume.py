"""Requests that come with output from before, through the engine: the tokens that would have come."""

import numpy as np
from stepwire.engine.v1 import engine_service_pb2 as pb

from tests.rpc.engine_bench import attached, new_request, num_running, running_engine, wait_until
from tests.stand_in_lanes import expected_tokens
from tests.stand_in_worker import StandInWorker


def resumed(handle: int, num_known: int, **fields: object) -> pb.NewRequest:
    """Build a request of 5 prompt tokens and seed 7 that goes on after ``num_known`` tokens."""
    known = np.array(expected_tokens(7, 5, num_known), "<i4").tobytes()
    return new_request(
        handle, [1, 2, 3, 4, 5], seed=7, output_token_ids=known, **{"max_tokens": 12, **fields}
    )


async def test_a_resumed_request_gets_the_tokens_that_would_have_come(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        for num_known in range(12):
            await probe.submit(resumed(num_known + 1, num_known))
        await probe.wait_ended(*range(1, 13))
        for num_known in range(12):
            assert probe.tokens[num_known + 1] == expected_tokens(7, 5, 12)[num_known:]
            assert probe.ended[num_known + 1].num_output_tokens == 12
            assert probe.started[num_known + 1][0] <= 5
        await engine.wait_idle()


async def test_a_resumed_request_takes_the_place_of_one_that_still_runs(worker: StandInWorker) -> None:
    worker.may_run.clear()
    async with (
        running_engine(worker.address) as engine,
        attached(engine) as old,
        attached(engine) as new,
    ):
        await new.wait_ready()
        await old.submit(resumed(1, 0, request_id="r"))
        await wait_until(lambda: num_running(engine) == 1)
        await new.submit(resumed(1, 3, request_id="r"))
        await new.wait_ended(1)
        assert new.ended[1].reason == pb.REQUEST_END_DUPLICATE_ID
        await new.submit(resumed(2, 3, request_id="r", takes_over=True))
        await old.wait_ended(1)
        assert old.ended[1].reason == pb.REQUEST_END_ABORT
        worker.may_run.set()
        await new.wait_ended(2)
        assert new.tokens[2] == expected_tokens(7, 5, 12)[3:]
        await engine.wait_idle()


async def test_nothing_to_take_over_is_no_fault(worker: StandInWorker) -> None:
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(resumed(1, 11, takes_over=True))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_LENGTH
        await probe.submit(resumed(2, 12, takes_over=True))
        await probe.wait_ended(2)
        assert probe.ended[2].reason == pb.REQUEST_END_INVALID


async def test_an_abort_ends_only_what_came_before_it(worker: StandInWorker) -> None:
    worker.may_run.clear()
    async with running_engine(worker.address) as engine, attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, request_id="r"))
        await wait_until(lambda: num_running(engine) == 1)
        requests = [new_request(handle, 3, seed=handle, request_id="r", max_tokens=2) for handle in (2, 3)]
        aborts = [pb.AbortById(request_id="r", num_requests_before=count) for count in (0, 1)]
        await probe.call.write(pb.AttachRequest(new_requests=requests, aborts=aborts))
        await probe.wait_ended(1, 2)
        assert {probe.ended[handle].reason for handle in (1, 2)} == {pb.REQUEST_END_ABORT}
        worker.may_run.set()
        await probe.wait_ended(3)
        assert probe.tokens[3] == expected_tokens(3, 3, 2)
        await probe.call.write(
            pb.AttachRequest(
                new_requests=[new_request(4, 3, request_id="s")],
                aborts=[pb.AbortById(request_id="s", num_requests_before=1)],
            )
        )
        await probe.wait_ended(4)
        assert probe.ended[4].reason == pb.REQUEST_END_ABORT
        await engine.wait_idle()


async def test_an_abort_means_what_was_asked_for_before_it_whichever_comes_first(
    worker: StandInWorker,
) -> None:
    async with (
        running_engine(worker.address) as engine,
        attached(engine) as probe,
        attached(engine) as other,
    ):
        await probe.wait_ready()
        await other.wait_ready()
        await other.call.write(pb.AttachRequest(aborts=[pb.AbortById(request_id="r", asked_ns=20)]))
        await other.submit(new_request(1, 3, request_id="fence", max_tokens=1))
        await other.wait_ended(1)
        await probe.submit(new_request(1, 3, request_id="r", asked_ns=19))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_ABORT
        assert 1 not in probe.tokens
        worker.may_run.clear()
        await probe.submit(new_request(2, 3, seed=2, request_id="r", asked_ns=30, max_tokens=2))
        await wait_until(lambda: num_running(engine) == 1)
        await other.call.write(pb.AttachRequest(aborts=[pb.AbortById(request_id="r", asked_ns=29)]))
        await other.submit(new_request(2, 3, request_id="r", asked_ns=31))
        await other.wait_ended(2)
        assert other.ended[2].reason == pb.REQUEST_END_DUPLICATE_ID  # it still runs
        worker.may_run.set()
        await probe.wait_ended(2)
        assert probe.tokens[2] == expected_tokens(2, 3, 2)
        await engine.wait_idle()
