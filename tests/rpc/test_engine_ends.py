"""How requests end from outside: aborts, stop strings, deadlines, front ends that go or do not read."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from tests.rpc.engine_bench import (
    RunningEngine,
    attached,
    new_request,
    num_finished,
    num_running,
    num_waiting,
    running_engine,
    wait_until,
)
from tests.stand_in_lanes import expected_tokens
from tests.stand_in_worker import StandInWorker

_MS = 10**6


@pytest.fixture
async def engine(worker: StandInWorker) -> AsyncIterator[RunningEngine]:
    """Run an engine that nothing is left in at the end."""
    async with running_engine(worker.address) as engine:
        yield engine
        worker.may_run.set()
        await engine.wait_idle()
        await wait_until(lambda: worker.num_lanes_held == 0)


async def test_an_aborted_request_ends_once_and_its_neighbour_runs_on(
    worker: StandInWorker, engine: RunningEngine
) -> None:
    async with attached(engine) as probe:
        await probe.wait_ready()
        worker.step_seconds = 0.001
        await probe.submit(new_request(1, 3, seed=1, max_tokens=60))
        await probe.submit(new_request(2, 3, seed=2, max_tokens=60))
        await probe.wait_tokens(1, 3)
        await probe.end(1, pb.END_REASON_ABORT)
        await probe.end(1, pb.END_REASON_ABORT)
        await probe.wait_ended(1, 2)
        assert probe.ended[1].reason == pb.REQUEST_END_ABORT
        assert probe.ended[1].num_output_tokens == len(probe.tokens[1]) < 60
        assert probe.tokens[1] == expected_tokens(1, 3, len(probe.tokens[1]))
        assert probe.tokens[2] == expected_tokens(2, 3, 60)


async def test_an_abort_by_id_reaches_another_front_ends_request(
    worker: StandInWorker, engine: RunningEngine
) -> None:
    async with attached(engine) as probe, attached(engine, 1) as other:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3, request_id="mine"), new_request(2, 3, request_id="mine too"))
        await wait_until(lambda: num_running(engine) == 2)
        for request_id in ("min", "unknown", "mine", "mine"):
            await other.abort(request_id)
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_ABORT
        assert (probe.ended[1].num_output_tokens, list(probe.ended)) == (0, [1])
        assert other.ended == {}
        await probe.end(2, pb.END_REASON_ABORT)
        await probe.wait_ended(2)


async def test_a_stop_string_ends_a_request_at_its_match(
    worker: StandInWorker, engine: RunningEngine
) -> None:
    worker.step_seconds = 0.001
    async with attached(engine) as probe:
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, seed=1, max_tokens=60))
        await probe.wait_tokens(1, 6)
        await probe.end(1, pb.END_REASON_STOP_STRING, num_output_tokens=5)
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_STOP
        assert probe.ended[1].num_output_tokens == 5
        assert not probe.ended[1].HasField("matched_stop_token_id")


@pytest.mark.parametrize("reason", [pb.END_REASON_DISCONNECT, pb.END_REASON_SLOW_CONSUMER])
async def test_a_client_that_went_frees_its_request_and_nobody_is_told(
    worker: StandInWorker, engine: RunningEngine, reason: pb.EndReason
) -> None:
    async with attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3))
        await wait_until(lambda: num_running(engine) == 1)
        await probe.end(1, reason)
        await wait_until(lambda: num_finished(engine) == 1)
        worker.may_run.set()
        await engine.wait_idle()
        assert probe.ended == {}
        assert probe.tokens == {}


async def test_a_front_end_that_goes_frees_all_its_requests(
    worker: StandInWorker, engine: RunningEngine
) -> None:
    async with attached(engine) as stays:
        await stays.wait_ready()
        worker.may_run.clear()
        async with attached(engine, 1) as goes:
            going = [new_request(handle, 3, request_id=f"going-{handle}") for handle in range(1, 11)]
            await goes.submit(*going)
            await wait_until(lambda: num_running(engine) == 8)
            await stays.submit(new_request(1, 3, seed=1, max_tokens=5))
            await wait_until(lambda: num_waiting(engine) == 3)
        await wait_until(lambda: num_finished(engine) == 10)
        worker.may_run.set()
        await stays.wait_ended(1)
        assert stays.tokens[1] == expected_tokens(1, 3, 5)
        # Its ids are free again.
        await stays.submit(new_request(2, 3, seed=1, max_tokens=1, request_id="going-1"))
        await stays.wait_ended(2)
        assert stays.ended[2].reason == pb.REQUEST_END_LENGTH


async def test_an_id_is_free_again_in_the_message_that_ends_its_request(
    worker: StandInWorker, engine: RunningEngine
) -> None:
    async with attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3, request_id="same"))
        await wait_until(lambda: num_running(engine) == 1)
        # The client cancelled, and asked again with its id before the front end's next message.
        await probe.call.write(
            pb.AttachRequest(
                new_requests=[
                    new_request(2, 3, seed=2, max_tokens=5, request_id="same"),
                    new_request(3, 3, request_id="ended at once"),
                ],
                end_requests=[
                    pb.EndRequest(handle=handle, reason=pb.END_REASON_DISCONNECT) for handle in (1, 3)
                ],
            )
        )
        await wait_until(lambda: num_finished(engine) == 2)
        worker.may_run.set()
        await probe.wait_ended(2)
        assert probe.ended[2].reason == pb.REQUEST_END_LENGTH
        assert probe.tokens[2] == expected_tokens(2, 3, 5)
        await engine.wait_idle()


async def test_a_deadline_ends_a_running_request(worker: StandInWorker, engine: RunningEngine) -> None:
    async with attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(new_request(1, 3, timeout_ns=30 * _MS))
        await probe.wait_ended(1)
        assert probe.ended[1].reason == pb.REQUEST_END_DEADLINE
        assert probe.ended[1].queue_time_ns > 0


async def test_deadlines_end_queued_requests_in_their_order(
    worker: StandInWorker, engine: RunningEngine
) -> None:
    async with attached(engine) as probe:
        await probe.wait_ready()
        worker.may_run.clear()
        await probe.submit(*(new_request(handle, 3, seed=handle, max_tokens=2) for handle in range(1, 9)))
        await probe.submit(new_request(9, 3, timeout_ns=60 * _MS))
        await probe.submit(new_request(10, 3, timeout_ns=30 * _MS))
        await probe.submit(new_request(11, 3, seed=11, max_tokens=2, timeout_ns=60_000 * _MS))
        await probe.wait_ended(9)
        assert list(probe.ended) == [10, 9]
        assert probe.ended[9].reason == probe.ended[10].reason == pb.REQUEST_END_DEADLINE
        # Neither was ever in a step.
        assert probe.ended[9].queue_time_ns == 0
        worker.may_run.set()
        await probe.wait_ended(*range(1, 9), 11)
        assert probe.ended[11].reason == pb.REQUEST_END_LENGTH


async def test_a_front_end_that_does_not_read_is_cut_off(worker: StandInWorker) -> None:
    async with (
        running_engine(worker.address, max_outbox_messages=10) as engine,
        attached(engine) as reads,
        # Without the probe the flow control window stays at 64 KiB.
        grpc.aio.insecure_channel(
            f"unix:{engine.socket_path}", options=(("grpc.http2.bdp_probe", 0),)
        ) as channel,
    ):
        await reads.wait_ready()
        attach = channel.stream_stream(
            "/stepwire.engine.v1.EngineService/Attach",
            request_serializer=pb.AttachRequest.SerializeToString,
            response_deserializer=pb.AttachResponse.FromString,
        )
        stalled = attach()
        worker.may_run.clear()
        hello = pb.FrontendHello(protocol_version=1, frontend_index=1)
        first = new_request(1, 3, request_id="x" * 20_000)
        await stalled.write(pb.AttachRequest(hello=hello, new_requests=[first]))
        # Refusals that name the long id fill the flow control window, then the outbox.
        refused = new_request(2, 3, request_id=first.request_id)
        for _ in range(60):
            await stalled.write(pb.AttachRequest(new_requests=[refused, refused]))
        await wait_until(lambda: num_finished(engine) == 1)
        worker.may_run.set()
        await reads.submit(new_request(1, 3, seed=1, max_tokens=5))
        await reads.wait_ended(1)
        assert reads.tokens[1] == expected_tokens(1, 3, 5)
        with pytest.raises(grpc.aio.AioRpcError, match="left unread 10 messages") as caught:
            await read_to_the_end(stalled)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_front_end_that_closes_its_side_is_told_the_end(worker: StandInWorker) -> None:
    # The first write of a stream, cut off by its end, once left one call in ten without a status.
    async with running_engine(worker.address) as engine:
        hello = pb.AttachRequest(hello=pb.FrontendHello(protocol_version=1))
        async with grpc.aio.insecure_channel(f"unix:{engine.socket_path}") as channel:
            for _ in range(100):
                attach: Any = channel.unary_stream("/stepwire.engine.v1.EngineService/Attach")
                call = attach(hello.SerializeToString(), timeout=10)
                assert [_ async for _ in call] != []
                assert await call.code() is grpc.StatusCode.OK


async def test_a_handle_that_is_in_use_costs_nobody_else(worker: StandInWorker) -> None:
    async with (
        running_engine(worker.address) as engine,
        attached(engine) as probe,
        attached(engine, 1) as other,
    ):
        await probe.wait_ready()
        worker.may_run.clear()
        await other.submit(new_request(1, 3, request_id="other", seed=1, max_tokens=3))
        await probe.submit(new_request(1, 3, request_id="a"), new_request(1, 3, request_id="b"))
        await probe.wait_ended(1)
        assert (probe.ended[1].reason, probe.ended[1].message) == (
            pb.REQUEST_END_INVALID,
            "handle is 1, but must not be in use",
        )
        worker.may_run.set()
        await other.wait_ended(1)
        assert other.tokens[1] == expected_tokens(1, 3, 3)
        probe.call.cancel()
    assert worker.faults == []
