"""Whose requests are whose, which prefixes are shared, and what each tenant may have in flight."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire_client import (
    AsyncStepwireClient,
    FinalOutput,
    FinishReason,
    GenerationRequest,
    InvalidRequest,
    ResourceExhausted,
    StepwireClientError,
)

from tests.rpc.engine_bench import num_running, num_waiting, wait_until
from tests.rpc.frontend_bench import LIMIT_SECONDS
from tests.rpc.stack_bench import Stack, running_stack, write_stand_in_folder
from tests.rpc.tenant_files import ALICE, BOB, write_tenants


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(folder: Path, tmp_path: Path) -> AsyncIterator[Stack]:
    """Run all parts, and see that no tenant has anything in flight at the end."""
    options = {"tenants_file": str(write_tenants(tmp_path))}
    async with running_stack(folder, frontend_options=options) as stack:
        yield stack


@contextmanager
def held(stack: Stack) -> Iterator[None]:
    """Hold all requests where they are."""
    stack.worker.may_run.clear()
    try:
        yield
    finally:
        stack.worker.may_run.set()


def num_live(stack: Stack) -> int:
    return num_waiting(stack.engine) + num_running(stack.engine)


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await call.code(), await call.details()


async def test_nobody_aborts_another_tenant_s_request(stack: Stack) -> None:
    async with (
        AsyncStepwireClient(stack.address, token=ALICE) as alice,
        AsyncStepwireClient(stack.address, token=BOB) as bob,
    ):
        with held(stack):
            asked = asyncio.create_task(
                alice.complete([1, 2], max_tokens=5, ignore_eos=True, request_id="mine")
            )
            await wait_until(lambda: num_live(stack) == 1)
            # As of an id that nobody has: Bob does not even learn that there is one.
            await bob.abort("mine")
            await bob.abort("alice/mine")
            # And he may use it himself, without being told that it is in use.
            assert (await asyncio.gather(bob.abort("mine"), bob.model_info()))[1].vocab_size == 1000
        completion = await asked
        assert (completion.finish_reason, len(completion.token_ids)) == (FinishReason.LENGTH, 5)
        with held(stack):
            asked = asyncio.create_task(alice.complete([1, 2], request_id="mine"))
            await wait_until(lambda: num_live(stack) == 1)
            await alice.abort("mine")
            assert (await asked).finish_reason is FinishReason.ABORT


async def test_two_tenants_may_use_one_id_and_neither_takes_over_the_other_s(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        generate = channel.unary_stream(
            "/stepwire.v1.GenerationService/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        request = pb.GenerateRequest(request_id="same", token_ids={"ids": [1, 2]})
        request.stop.max_tokens, request.stop.ignore_eos = 3, True
        resumed = pb.GenerateRequest(resume=pb.Resume())
        resumed.MergeFrom(request)
        with held(stack):
            first = generate(request, metadata=(("authorization", f"Bearer {ALICE}"),))
            await wait_until(lambda: num_live(stack) == 1)
            # A resumed request takes the place of one with the same id.
            second = generate(resumed, metadata=(("authorization", f"Bearer {BOB}"),))
            await wait_until(lambda: num_live(stack) == 2)
        for call in (first, second):
            messages = [message async for message in call]
            assert {message.request_id for message in messages} == {"same"}
            assert messages[-1].final.usage.num_output_tokens == 3
        with held(stack):
            first = generate(request, metadata=(("authorization", f"Bearer {ALICE}"),))
            await wait_until(lambda: num_live(stack) == 1)
            again = generate(request, metadata=(("authorization", f"Bearer {ALICE}"),))
            code, told = await end_of(again)
        # By the id that the client gave: the tenant's name is none of its business.
        assert (code, told) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "request_id is 'same', but must not be in use",
        )
        assert [message async for message in first][-1].HasField("final")


async def test_tenants_share_no_cached_prefixes(stack: Stack) -> None:
    prompt = list(range(20))
    async with (
        AsyncStepwireClient(stack.address, token=ALICE) as alice,
        AsyncStepwireClient(stack.address, token=BOB) as bob,
    ):
        num_cached = [
            (await client.complete(prompt, max_tokens=1, cache_salt=salt)).usage.num_cached_tokens
            for client, salt in ((alice, ""), (bob, ""), (alice, ""), (bob, ""), (alice, "x"), (alice, "x"))
        ]
    assert num_cached == [0, 0, 16, 16, 0, 16]


async def test_a_tenant_s_quotas_hold_and_are_given_back(stack: Stack) -> None:
    async with (
        AsyncStepwireClient(stack.address, token=ALICE) as alice,
        AsyncStepwireClient(stack.address, token=BOB) as bob,
    ):
        with held(stack):
            asked = [
                asyncio.create_task(bob.complete([1, 2], max_tokens=3, ignore_eos=True)) for _ in range(2)
            ]
            await wait_until(lambda: num_live(stack) == 2)
            with pytest.raises(ResourceExhausted) as caught:
                await bob.complete([1, 2], max_tokens=3)
            assert caught.value.message == (
                "tenant 'bob' has 2 requests in flight, the most that its quota allows: "
                "try again when one has ended"
            )
            assert caught.value.retry_after_seconds == 1
            asked.append(asyncio.create_task(alice.complete([1, 2], max_tokens=3, ignore_eos=True)))
            await wait_until(lambda: num_live(stack) == 3)
        assert [len((await one).token_ids) for one in asked] == [3, 3, 3]
        assert len((await bob.complete([1, 2], max_tokens=3, ignore_eos=True)).token_ids) == 3


async def test_tokens_in_flight_are_counted_with_the_longest_output(stack: Stack) -> None:
    async with AsyncStepwireClient(stack.address, token=BOB) as bob:
        with held(stack):
            asked = asyncio.create_task(bob.complete([1, 2], max_tokens=40, ignore_eos=True))
            await wait_until(lambda: num_live(stack) == 1)
            with pytest.raises(ResourceExhausted) as caught:
                await bob.complete([1, 2], max_tokens=17)
            assert caught.value.message == (
                "tenant 'bob' would have 61 tokens in flight, 19 of them this request's; "
                "its quota allows 60: try again when one has ended"
            )
            fits = asyncio.create_task(bob.complete([1, 2], max_tokens=16, ignore_eos=True))
            await wait_until(lambda: num_live(stack) == 2)
            fits.cancel()
            await wait_until(lambda: num_live(stack) == 1)
        assert len((await asked).token_ids) == 40
        # What can never fit is the request's own fault, and what is left open ends where the quota does.
        with pytest.raises(InvalidRequest, match="prompt and output share the tenant's quota, 60 tokens"):
            await bob.complete([1, 2], max_tokens=59)
        assert len((await bob.complete([1, 2], ignore_eos=True)).token_ids) == 58


async def test_on_a_stream_of_many_a_quota_ends_one_request_only(stack: Stack) -> None:
    requests = [
        GenerationRequest.of([1, 2], max_tokens=2, ignore_eos=True, request_id=str(index))
        for index in range(3)
    ]
    ends: list[Any] = []
    async with AsyncStepwireClient(stack.address, token=BOB) as bob:
        stack.worker.may_run.clear()
        async for _, event in bob.generate_many(requests):
            if isinstance(event, StepwireClientError):
                ends.append(type(event))
                stack.worker.may_run.set()
            elif isinstance(event, FinalOutput):
                ends.append(event.finish_reason)
    assert ends == [ResourceExhausted, FinishReason.LENGTH, FinishReason.LENGTH]
