"""Hostile messages and random bytes at the engine's socket, where front ends attach.

No call may end as a fault of the engine's, no request as one, nothing may be held afterwards, and the
worker must never get a step that it cannot run.
"""

import grpc
from stepwire.engine.v1 import engine_service_pb2 as pb

from tests.fuzz.fuzz_calls import Amount, after, always, throw, throw_streams
from tests.fuzz.hostile_messages import hostile_messages, random_bytes
from tests.rpc.engine_bench import attached, new_request, running_engine, wait_until
from tests.stand_in_lanes import expected_tokens
from tests.stand_in_worker import StandInWorker

SERVICE = "/stepwire.engine.v1.EngineService"
_STATUS = grpc.StatusCode
MAY_END = frozenset({_STATUS.OK, _STATUS.INVALID_ARGUMENT, _STATUS.FAILED_PRECONDITION})


def honest_message() -> pb.AttachRequest:
    """One message that opens a stream, starts a request and ends another."""
    new = new_request(1, [5, 6, 7], seed=3, max_tokens=3)
    return pb.AttachRequest(
        hello=pb.FrontendHello(protocol_version=1),
        new_requests=[new],
        end_requests=[pb.EndRequest(handle=2, reason=pb.END_REASON_DISCONNECT)],
        aborts=[pb.AbortById(request_id="x")],
    )


def judge(answers: list[bytes]) -> str:
    """Find requests that ended as the engine's own fault."""
    read = [pb.AttachResponse.FromString(answer) for answer in answers]
    bad = [
        str(ended) for one in read for ended in one.outputs.ended if ended.reason == pb.REQUEST_END_INTERNAL
    ]
    return "; ".join(bad)


def test_no_method_is_forgotten() -> None:
    methods = pb.DESCRIPTOR.services_by_name["EngineService"].methods_by_name
    assert set(methods) == {"Attach", "GetEngineState", "WatchPrefixCaches", "FlushPrefixCaches"}


async def test_the_engine_withstands_hostile_front_ends(amount: Amount) -> None:
    worker, wrong = StandInWorker(), []
    await worker.start()
    hello = pb.AttachRequest(hello=pb.FrontendHello(protocol_version=1)).SerializeToString()
    async with running_engine(worker.address, max_num_waiting=64) as engine:
        await wait_until(lambda: engine.engine.state().core is not None)
        address = f"unix:{engine.socket_path}"
        method = f"{SERVICE}/Attach"
        messages = hostile_messages(honest_message(), amount.num_hostile, seed=1)
        wrong += (await throw(address, method, messages=messages, may_end=MAY_END, judge=judge)).wrong
        for messages in (
            hostile_messages(honest_message(), amount.num_hostile, seed=2),
            random_bytes(amount.num_random, seed=3),
        ):
            # Behind a hello that is as it should be, so that the rest is looked at.
            calls = after(always([hello]), messages)
            wrong += (await throw_streams(address, method, calls=calls, may_end=MAY_END, judge=judge)).wrong
        for honest in (
            pb.GetEngineStateRequest(),
            pb.WatchPrefixCachesRequest(),
            pb.FlushPrefixCachesRequest(timeout_ns=1),
        ):
            name = type(honest).__name__.removesuffix("Request")
            for messages in (
                hostile_messages(honest, amount.num_hostile, seed=4),
                random_bytes(amount.num_random, seed=5),
            ):
                outcomes = await throw(
                    address,
                    f"{SERVICE}/{name}",
                    messages=messages,
                    may_end=MAY_END,
                    is_endless=name.startswith("Watch"),
                )
                wrong += outcomes.wrong
        await engine.wait_idle()
        await wait_until(lambda: worker.num_lanes_held == 0)
        async with attached(engine) as probe:
            await probe.submit(new_request(1, [1, 2, 3], seed=7, max_tokens=5))
            await probe.wait_ended(1)
            assert probe.tokens[1] == expected_tokens(7, 3, 5)
        assert len(worker.hellos) == 1, "the worker was lost"
    await worker.stop()
    assert worker.faults == []
    assert wrong == []
