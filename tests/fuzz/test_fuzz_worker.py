"""Hostile messages and random bytes at the worker's port, where an engine sends its steps.

No call may end as a fault of the worker's, no lane may be held afterwards, and the next engine is served.
"""

import grpc
from stepwire.worker.v1 import worker_service_pb2 as pb

from tests.fuzz.fuzz_calls import Amount, after, always, throw, throw_streams
from tests.fuzz.hostile_messages import hostile_messages, random_bytes
from tests.rpc.worker_harness import HELLO, admission, int32_bytes, result_of, rows, serving

SERVICE = "/stepwire.worker.v1.WorkerService"
_STATUS = grpc.StatusCode
MAY_END = frozenset({_STATUS.OK, _STATUS.INVALID_ARGUMENT, _STATUS.FAILED_PRECONDITION})
NEWEST = 2**64 - 1
"""A fencing number that no other engine outbids."""


def honest_first_step() -> pb.RunStepsRequest:
    message = rows(1, (0, 3), admissions=[admission(0)])
    message.step.admissions[0].sampling.stop_token_ids = int32_bytes(9)
    return message


def honest_lease() -> pb.RunStepsRequest:
    """The step after: a decode of the same lane, several tokens at once."""
    message = rows(2, (0, 3))
    message.step.num_steps = 3
    return message


def test_no_method_is_forgotten() -> None:
    methods = pb.DESCRIPTOR.services_by_name["WorkerService"].methods_by_name
    assert set(methods) == {"RunSteps", "GetWorkerInfo"}


async def test_the_worker_withstands_hostile_engines(amount: Amount) -> None:
    newest = pb.RunStepsRequest(hello=HELLO)
    newest.hello.fencing_number = NEWEST
    hello = newest.SerializeToString()
    first = honest_first_step().SerializeToString()
    wrong = []
    async with serving(fencing_hold_seconds=0.0) as worker:
        method = f"{SERVICE}/RunSteps"
        messages = hostile_messages(pb.RunStepsRequest(hello=HELLO), amount.num_hostile, seed=1)
        # Each takes the worker from the one before, or is refused as the older engine.
        may_end = MAY_END | {_STATUS.ABORTED}
        wrong += (await throw(worker.address, method, messages=messages, may_end=may_end)).wrong
        for before, messages in (
            ([hello], hostile_messages(honest_first_step(), amount.num_hostile, seed=2)),
            ([hello, first], hostile_messages(honest_lease(), amount.num_hostile, seed=3)),
            ([hello], random_bytes(amount.num_random, seed=4)),
        ):
            calls = after(always(before), messages)
            # One at a time, so that each has the worker to itself.
            outcomes = await throw_streams(
                worker.address, method, calls=calls, may_end=MAY_END, num_at_once=1
            )
            wrong += outcomes.wrong
        method = f"{SERVICE}/GetWorkerInfo"
        for messages in (
            hostile_messages(pb.GetWorkerInfoRequest(), amount.num_hostile, seed=5),
            random_bytes(amount.num_random, seed=6),
        ):
            wrong += (await throw(worker.address, method, messages=messages, may_end=MAY_END)).wrong

        async def num_lanes_held() -> int:
            info = await worker.stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
            return int(info.num_lanes_held)

        assert wrong == []
        call, _ = await worker.open(fencing_number=NEWEST)
        assert await num_lanes_held() == 0
        await call.write(honest_first_step())
        assert await result_of(call) == (1, [3])
        await call.done_writing()
        assert await call.code() is _STATUS.OK
