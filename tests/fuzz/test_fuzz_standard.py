"""Hostile messages and random bytes at health and reflection, whose servicers come out of gRPC's packages.

Probes call health without a token. No call may end as a fault of ours, and both answer afterwards.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.fuzz.fuzz_calls import Amount, Messages, throw, throw_streams
from tests.fuzz.hostile_messages import hostile_messages, random_bytes
from tests.rpc.stack_bench import running_stack, write_stand_in_folder

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_STATUS = grpc.StatusCode
MAY_END = frozenset({_STATUS.OK, _STATUS.INVALID_ARGUMENT})


def test_no_method_is_forgotten() -> None:
    services = (
        *health_pb2.DESCRIPTOR.services_by_name.values(),
        *reflection_pb2.DESCRIPTOR.services_by_name.values(),
    )
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert methods == {CHECK, WATCH, REFLECTION}


async def test_health_withstands_hostile_probes(tmp_path: Path, amount: Amount) -> None:
    honest = health_pb2.HealthCheckRequest(service="ready")
    async with running_stack(write_stand_in_folder(tmp_path)) as stack:
        wrong: list[str] = []
        for method, may_end in ((CHECK, MAY_END | {_STATUS.NOT_FOUND}), (WATCH, MAY_END)):
            for messages in (
                hostile_messages(honest, amount.num_hostile, seed=1),
                random_bytes(amount.num_random, seed=2),
            ):
                outcomes = await throw(
                    stack.address, method, messages=messages, may_end=may_end, is_endless=method == WATCH
                )
                wrong += outcomes.wrong
        probe = await throw(
            stack.address, CHECK, messages=[honest.SerializeToString()], may_end=frozenset({_STATUS.OK})
        )
    assert wrong == []
    assert (dict(probe.codes), probe.wrong) == ({_STATUS.OK: 1}, [])


async def test_reflection_withstands_hostile_questions(tmp_path: Path, amount: Amount) -> None:
    honest = reflection_pb2.ServerReflectionRequest(file_containing_symbol="stepwire.v1.GenerationService")

    def calls() -> Iterator[Messages]:
        """Ask honestly in each call, then anything."""
        first = honest.SerializeToString()
        yield from ([first, one] for one in hostile_messages(honest, amount.num_hostile, seed=3))
        yield from ([first, one] for one in random_bytes(amount.num_random, seed=4))

    async with running_stack(write_stand_in_folder(tmp_path)) as stack:
        outcomes = await throw_streams(stack.address, REFLECTION, calls=calls(), may_end=MAY_END)
        asked = await throw_streams(
            stack.address,
            REFLECTION,
            calls=iter([[honest.SerializeToString()]]),
            may_end=frozenset({_STATUS.OK}),
            judge=lacks_files,
        )
    assert outcomes.codes[_STATUS.INVALID_ARGUMENT] > 0
    assert outcomes.wrong == []
    assert (dict(asked.codes), asked.wrong) == ({_STATUS.OK: 1}, [])


def lacks_files(answers: list[bytes]) -> str:
    """Tell where an answer does not hold what was asked for."""
    (answer,) = (reflection_pb2.ServerReflectionResponse.FromString(one) for one in answers)
    return "" if answer.file_descriptor_response.file_descriptor_proto else str(answer)
