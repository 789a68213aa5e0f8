"""AsyncStepwireClient against a scripted server."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import (
    AsyncStepwireClient,
    Cancelled,
    DeadlineExceeded,
    Delta,
    FinalOutput,
    FinishReason,
    GenerationRequest,
    Internal,
    InvalidRequest,
    ResourceExhausted,
    StreamNotFinished,
    Unavailable,
)

from tests.rpc.fake_generation_service import FakeGenerationService

DELTAS = [
    Delta(text="The ", token_ids=(11,)),
    Delta(text="", token_ids=(12,)),
    Delta(text="capital", token_ids=(13,)),
]


@pytest.fixture
async def client(fake_address: str) -> AsyncIterator[AsyncStepwireClient]:
    async with AsyncStepwireClient(fake_address) as client:
        yield client


async def has_left(service: FakeGenerationService) -> bool:
    return await asyncio.to_thread(service.has_left.wait, 10)


async def test_a_stream_yields_deltas_and_then_tells_the_end(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    async with client.generate("Hi", request_id="r1", seed=7) as stream:
        with pytest.raises(StreamNotFinished):
            _ = stream.final
        assert [delta async for delta in stream] == DELTAS
        assert stream.final.finish_reason is FinishReason.STOP
        assert await stream.text() == "The capital"
    (request,) = fake_service.requests
    assert (request.request_id, request.text, request.sampling.seed) == ("r1", "Hi", 7)


async def test_complete_joins_everything(client: AsyncStepwireClient) -> None:
    completion = await client.complete("Hi", request_id="r1")
    assert (completion.request_id, completion.text, completion.token_ids) == (
        "r1",
        "The capital",
        (11, 12, 13),
    )
    assert (completion.matched_stop, completion.usage.num_cached_tokens) == (2, 4)


async def test_leaving_the_block_early_cancels(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.is_endless = True
    async with client.generate("Hi") as stream:
        assert await anext(stream) == DELTAS[0]
        assert not fake_service.has_left.is_set()
    assert await has_left(fake_service)
    with pytest.raises(Cancelled):
        await stream.text()


async def test_breaking_out_of_a_loop_cancels(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.is_endless = True
    async for delta in client.generate("Hi"):
        assert delta == DELTAS[0]
        break
    assert await has_left(fake_service)


async def test_cancelling_the_task_that_reads_cancels_the_request(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.is_endless = True
    stream = client.generate("Hi")
    assert [await anext(stream) for _ in DELTAS] == DELTAS
    reader = asyncio.create_task(stream.text())
    await asyncio.sleep(0)  # the task starts to read
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await has_left(fake_service)


async def test_close_wakes_a_reader_with_the_clients_own_error(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.is_endless = True
    stream = client.generate("Hi")
    assert [await anext(stream) for _ in DELTAS] == DELTAS
    reader = asyncio.create_task(stream.text())
    await asyncio.sleep(0)  # the task starts to read
    stream.close()
    with pytest.raises(Cancelled):
        await reader


async def test_a_timeout_is_the_deadline_of_the_whole_call(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.is_endless = True
    with pytest.raises(DeadlineExceeded):
        await client.complete("Hi", timeout_seconds=0.3)
    assert await has_left(fake_service)


async def test_a_status_becomes_an_error_with_the_servers_message(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "4096 requests wait already")
    with pytest.raises(ResourceExhausted, match=r"^4096 requests wait already$"):
        await client.complete("Hi")
    for call in (client.model_info(), client.server_state(), client.abort("r1")):
        with pytest.raises(ResourceExhausted):
            await call


async def test_a_stream_without_a_final_message_is_the_servers_fault(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.final = None
    with pytest.raises(Internal, match="without a final message"):
        await client.complete("Hi")


async def test_the_calls_that_answer_once(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    assert (await client.model_info()).model_name == "tiny"
    assert (await client.server_state()).num_running == 2
    assert (await client.tokenize("ab")).token_ids == (97, 98)
    assert await client.detokenize([124, 98], skip_special_tokens=True) == "b"
    await client.abort("r9")
    assert fake_service.aborted_ids == ["r9"]


async def test_many_requests_share_one_stream(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    prompts = ["a", "bad", "c", "d", "e"]
    requests = (GenerationRequest.of(prompt, request_id=f"{prompt}-id") for prompt in prompts)
    events = [event async for event in client.generate_many(requests, max_concurrent=2)]
    assert [request.text for request in fake_service.requests] == prompts
    texts = dict.fromkeys(("a-id", "c-id", "d-id", "e-id"), "")
    ended = []
    for request_id, event in events:
        if isinstance(event, Delta):
            texts[request_id] += event.text
        else:
            ended.append((request_id, type(event)))
    assert texts == dict.fromkeys(("a-id", "c-id", "d-id", "e-id"), "The capital")
    assert sorted(ended, key=lambda item: item[0]) == [
        ("a-id", FinalOutput),
        ("bad-id", InvalidRequest),
        ("c-id", FinalOutput),
        ("d-id", FinalOutput),
        ("e-id", FinalOutput),
    ]


async def test_a_bulk_is_read_while_it_is_sent(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    # More in both directions than the connection holds: a server that waits for its reader takes no more.
    text = "x" * 2**18
    fake_service.deltas = [types_pb.OutputDelta(text=text)] * 4
    requests = (GenerationRequest.of(text) for _ in range(100))
    async with asyncio.timeout(30):
        events = [event async for event in client.generate_many(requests, max_concurrent=100)]
    assert len(events) == 500


async def test_many_requests_are_cancelled_together(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    requests = [GenerationRequest.of("a") for _ in range(3)]
    async for _, event in client.generate_many(requests, max_concurrent=1):
        assert event == DELTAS[0]
        break
    assert await has_left(fake_service)


async def test_a_broken_bulk_stream_raises(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    fake_service.error = (grpc.StatusCode.UNAVAILABLE, "the server drains")
    async with client.generate_many([GenerationRequest.of("a")]) as stream:
        for _ in range(2):  # the error stays
            with pytest.raises(Unavailable, match=r"^the server drains$"):
                await anext(stream)


async def test_a_closed_bulk_stream_sends_no_more(
    client: AsyncStepwireClient, fake_service: FakeGenerationService
) -> None:
    requests = [GenerationRequest.of("a"), GenerationRequest.of("b")]
    async with client.generate_many(requests, max_concurrent=1) as stream:
        while not isinstance((await anext(stream))[1], FinalOutput):
            pass
        stream.close()
        with pytest.raises(Cancelled):
            await anext(stream)
    assert len(fake_service.requests) == 1


async def test_an_empty_bulk_ends_at_once(client: AsyncStepwireClient) -> None:
    assert [event async for event in client.generate_many([])] == []
