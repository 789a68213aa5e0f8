"""Hostile messages and random bytes at every method of the front end's services.

No call may end as a fault of ours, and nothing may be held afterwards: the last request is served like
the first. The short runs are part of `make test`, the long ones are `make test-fuzz`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire_client import AsyncStepwireClient

from tests.fuzz.fuzz_calls import Amount, Outcomes, after, throw, throw_streams
from tests.fuzz.hostile_messages import hostile_messages, random_bytes
from tests.rpc.stack_bench import running_stack, write_stand_in_folder
from tests.stand_in_lanes import expected_tokens

GENERATION = "stepwire.v1.GenerationService"
GATEWAY = "vllm.grpc.engine.VllmEngine"
_STATUS = grpc.StatusCode
MAY_END = frozenset({_STATUS.OK, _STATUS.INVALID_ARGUMENT, _STATUS.RESOURCE_EXHAUSTED})
ENDLESS = f"/{GATEWAY}/SubscribeKvEvents"
NUM_A_STREAM = 10


def honest_request() -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=types_pb2.TokenIds(ids=[5, 6, 7]),
        sampling=types_pb2.SamplingParams(seed=3),
        stop=types_pb2.StopParams(max_tokens=3),
    )


def honest_messages() -> dict[str, Any]:
    """Return an honest message of each method, by its path."""
    chat = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="hi")])
    ours = {
        "Generate": honest_request(),
        "Abort": pb.AbortRequest(request_id="x"),
        "GetModelInfo": pb.GetModelInfoRequest(),
        "GetServerState": pb.GetServerStateRequest(),
        "Tokenize": pb.TokenizeRequest(chat=chat),
        "Detokenize": pb.DetokenizeRequest(token_ids=[72, 105]),
    }
    gateway = {
        "Generate": vllm_engine_pb2.GenerateRequest(
            request_id="x",
            tokenized=vllm_engine_pb2.TokenizedInput(input_ids=[5, 6, 7]),
            sampling_params=vllm_engine_pb2.SamplingParams(max_tokens=3),
            stream=True,
        ),
        "Embed": vllm_engine_pb2.EmbedRequest(),
        "HealthCheck": vllm_engine_pb2.HealthCheckRequest(),
        "FlushCache": common_pb2.FlushCacheRequest(),
        "StartProfile": common_pb2.StartProfileRequest(),
        "StopProfile": common_pb2.StopProfileRequest(),
        "Abort": vllm_engine_pb2.AbortRequest(request_ids=["x"]),
        "GetModelInfo": vllm_engine_pb2.GetModelInfoRequest(),
        "GetServerInfo": vllm_engine_pb2.GetServerInfoRequest(),
        "GetLoads": vllm_engine_pb2.GetLoadsRequest(),
        "GetTokenizer": common_pb2.GetTokenizerRequest(),
        "SubscribeKvEvents": common_pb2.SubscribeKvEventsRequest(),
    }
    return {f"/{GENERATION}/{name}": message for name, message in ours.items()} | {
        f"/{GATEWAY}/{name}": message for name, message in gateway.items()
    }


def test_no_method_is_forgotten() -> None:
    services = [pb.DESCRIPTOR.services_by_name["GenerationService"]]
    services.append(vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"])
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert methods - honest_messages().keys() == {f"/{GENERATION}/GenerateMany"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_folder(tmp_path_factory.mktemp("model"))


async def test_every_method_withstands_hostile_messages(folder: Path, amount: Amount) -> None:
    wrong: list[str] = []
    async with running_stack(folder, max_num_waiting=64) as stack:
        for number, (method, honest) in enumerate(honest_messages().items()):
            may_end = MAY_END | {_STATUS.UNIMPLEMENTED} if GATEWAY in method else MAY_END
            may_end |= {_STATUS.OUT_OF_RANGE} if method == ENDLESS else set()
            for messages in (
                hostile_messages(honest, amount.num_hostile, seed=number),
                random_bytes(amount.num_random, seed=number),
            ):
                outcomes = await throw(
                    stack.address, method, messages=messages, may_end=may_end, is_endless=method == ENDLESS
                )
                wrong += outcomes.wrong
            await stack.engine.wait_idle()
        await expect_served(stack.address)
    assert wrong == []


async def test_a_stream_of_many_withstands_hostile_messages(folder: Path, amount: Amount) -> None:
    honest = pb.GenerateManyRequest(generate=honest_request())
    honest.generate.request_id = "x"
    wrong: list[str] = []
    async with running_stack(folder, max_num_waiting=64) as stack:
        for messages in (
            hostile_messages(honest, amount.num_hostile, seed=99),
            random_bytes(amount.num_random, seed=99),
        ):
            wrong += (await throw_many(stack.address, messages)).wrong
        await stack.engine.wait_idle()
        await expect_served(stack.address)
    assert wrong == []


async def throw_many(address: str, messages: Iterable[bytes]) -> Outcomes:
    """Send several messages on each stream, of which the first is honest and must be served."""

    def first(number: int) -> list[bytes]:
        message = pb.GenerateManyRequest(generate=honest_request())
        message.generate.request_id = f"honest-{number}"
        return [message.SerializeToString()]

    return await throw_streams(
        address,
        f"/{GENERATION}/GenerateMany",
        calls=after(first, messages, num_each=NUM_A_STREAM),
        may_end=MAY_END,
        judge=judge_many,
    )


def judge_many(answers: list[bytes]) -> str:
    """Find errors that no request may end with, and look for the honest one's end."""
    read = [pb.GenerateManyResponse.FromString(answer) for answer in answers]
    codes = {status.value[0] for status in MAY_END}
    bad = [str(one.error) for one in read if one.HasField("error") and one.error.code not in codes]
    honest = [one for one in read if one.request_id.startswith("honest-") and one.HasField("final")]
    return "; ".join(bad) or ("" if honest else "the honest request did not end")


async def expect_served(address: str) -> None:
    """See that a request still gets exactly its tokens."""
    async with AsyncStepwireClient(address) as client:
        completion = await client.complete([1, 2, 3], seed=7, max_tokens=5, ignore_eos=True)
    assert list(completion.token_ids) == expected_tokens(7, 3, 5)
