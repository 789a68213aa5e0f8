"""What a gateway is told of the prefix cache, and how it flushes it: all parts, with a stand-in worker."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2
from stepwire.v1 import generation_service_pb2, types_pb2

from scheduler_svc.engine.values import CacheBatch
from tests.rpc.engine_bench import num_running, wait_until
from tests.rpc.frontend_bench import LIMIT_SECONDS
from tests.rpc.gateway_bench import gateway_stub, status_of
from tests.rpc.stack_bench import Stack, running_stack, write_stand_in_folder
from tests.rpc.tenant_files import ALICE, BOB, write_tenants
from tests.stand_in_lanes import expected_tokens

PROMPT = list(range(100, 109))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_in_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def stack(folder: Path) -> AsyncIterator[Stack]:
    async with running_stack(folder) as stack:
        yield stack


class Subscriber:
    """Reads events and remembers what it was told, by hash."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.batches: list[pb.KvEventBatch] = []
        self.blocks: dict[int, tuple[int | None, list[int]]] = {}
        """Hash to (the hash before it, its tokens)."""

    async def read(self) -> pb.KvEventBatch:
        """Take in the next batch."""
        batch: pb.KvEventBatch = await asyncio.wait_for(self._call.read(), LIMIT_SECONDS)
        self.batches.append(batch)
        for event in batch.events:
            self._apply(event)
        return batch

    async def read_until(self, num_blocks: int) -> None:
        """Take in batches until so many blocks are known."""
        while len(self.blocks) != num_blocks:
            await self.read()

    async def read_to_the_end(self) -> None:
        """Take in batches until the stream ends."""
        while await self._call.read() is not grpc.aio.EOF:
            continue

    def _apply(self, event: pb.KvCacheEvent) -> None:
        match event.WhichOneof("data"):
            case "stored":
                parent = (
                    event.stored.parent_block_hash if event.stored.HasField("parent_block_hash") else None
                )
                for block in event.stored.blocks:
                    assert block.block_size == len(block.token_ids)
                    self.blocks[block.block_hash] = (parent, list(block.token_ids))
                    parent = block.block_hash
            case "removed":
                for block_hash in event.removed.block_hashes:
                    del self.blocks[block_hash]
            case "cleared":
                self.blocks.clear()

    def prefixes(self) -> list[list[int]]:
        """Tell the tokens of each known block with all before it, shortest first."""
        return sorted((self._prefix(block_hash) for block_hash in self.blocks), key=len)

    def _prefix(self, block_hash: int) -> list[int]:
        parent, token_ids = self.blocks[block_hash]
        return token_ids if parent is None else self._prefix(parent) + token_ids


@asynccontextmanager
async def subscribed(stack: Stack, metadata: Any = None) -> AsyncIterator[Subscriber]:
    """Subscribe, and take in the first batch."""
    async with grpc.aio.insecure_channel(stack.address) as channel:
        call = gateway_stub(channel).SubscribeKvEvents(pb.SubscribeKvEventsRequest(), metadata=metadata)
        subscriber = Subscriber(call)
        await subscriber.read()
        yield subscriber
        call.cancel()


async def generate(stack: Stack, prompt: list[int], *, metadata: Any = None, **fields: Any) -> None:
    """Run a request of seed 5 and 4 tokens to its end."""
    request = generation_service_pb2.GenerateRequest(
        token_ids=types_pb2.TokenIds(ids=prompt),
        sampling=types_pb2.SamplingParams(seed=5),
        stop=types_pb2.StopParams(max_tokens=4, ignore_eos=True),
        **fields,
    )
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in stack.stub.Generate(request, metadata=metadata):
            continue


def is_told_to_anybody(stack: Stack) -> bool:
    return any(group.core._state.journal.is_kept for group in stack.engine.engine._groups)


async def test_blocks_are_told_as_they_come_with_their_tokens(stack: Stack) -> None:
    assert not is_told_to_anybody(stack)
    async with subscribed(stack) as subscriber:
        (first,) = subscriber.batches
        assert [event.WhichOneof("data") for event in first.events] == ["cleared"]
        await generate(stack, PROMPT)
        await subscriber.read_until(3)
        whole = PROMPT + expected_tokens(5, len(PROMPT), 4)
        assert subscriber.prefixes() == [whole[:4], whole[:8], whole[:12]]
        numbers = [batch.sequence_number for batch in subscriber.batches]
        assert numbers == list(range(first.sequence_number, first.sequence_number + len(numbers)))
        assert {batch.dp_rank for batch in subscriber.batches} == {0}
        assert all(abs(batch.timestamp - time.time()) < LIMIT_SECONDS for batch in subscriber.batches)
        events = [event.event_id for batch in subscriber.batches for event in batch.events]
        assert events == list(range(1, len(events) + 1))
    await wait_until(lambda: not is_told_to_anybody(stack))


async def test_evicted_blocks_are_told(stack: Stack) -> None:
    # The pool has 64 blocks of 4 tokens; each request leaves 10 behind.
    async with subscribed(stack) as subscriber:
        for number in range(8):
            await generate(stack, [number] * 37)
        last = [7] * 37 + expected_tokens(5, 37, 4)
        while last[:40] not in subscriber.prefixes():
            await subscriber.read()
        core = stack.engine.engine.state().core
        assert core is not None
        await subscriber.read_until(core.num_cached_blocks)
        assert any(event.HasField("removed") for batch in subscriber.batches for event in batch.events)
        assert last[:40] in subscriber.prefixes()
        assert not any(prefix[0] == 0 for prefix in subscriber.prefixes())


async def test_two_subscribers_are_told_the_same_and_a_late_one_what_is_new(stack: Stack) -> None:
    async with subscribed(stack) as early:
        await generate(stack, PROMPT)
        await early.read_until(3)
        async with subscribed(stack) as late:
            assert late.batches[0].sequence_number == early.batches[-1].sequence_number
            await generate(stack, [1, *PROMPT])
            await early.read_until(6)
            await late.read_until(3)
            assert late.blocks.items() <= early.blocks.items()
            assert [late.batches[-1].sequence_number] == [early.batches[-1].sequence_number]


async def test_a_lost_worker_s_cache_is_cleared(stack: Stack) -> None:
    async with subscribed(stack) as subscriber:
        await generate(stack, PROMPT)
        await subscriber.read_until(3)
        stack.worker.break_stream()
        await subscriber.read_until(0)
        await wait_until(lambda: len(stack.worker.hellos) == 2)
        await generate(stack, PROMPT)
        await subscriber.read_until(3)


async def test_earlier_events_are_not_kept(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        request = pb.SubscribeKvEventsRequest(start_sequence_number=2**64 - 1)
        code, message = await status_of(gateway_stub(channel).SubscribeKvEvents(request))
    assert code == grpc.StatusCode.OUT_OF_RANGE
    assert message == f"start_sequence_number is {2**64 - 1}, but must be 0: no events are kept"


async def test_who_does_not_read_is_cut_off(folder: Path) -> None:
    async with running_stack(folder, max_outbox_messages=4) as stack, subscribed(stack) as subscriber:
        (feed,) = stack.engine.engine.cache_feeds._feeds
        for number in range(6):  # all at once, so that nothing of it can be written meanwhile
            feed.put(CacheBatch(group=0, sequence_number=number, events=()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await subscriber.read_to_the_end()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (caught.value.details() or "").startswith("events were not read: the front end left unread 4")


async def test_a_tenant_is_told_of_its_own_blocks_only(folder: Path, tmp_path: Path) -> None:
    options = {"tenants_file": str(write_tenants(tmp_path))}
    alice, bob = ((("authorization", f"Bearer {token}"),) for token in (ALICE, BOB))
    async with (
        running_stack(folder, frontend_options=options) as stack,
        subscribed(stack, alice) as subscriber,
    ):
        await generate(stack, [9, *PROMPT], metadata=bob)
        await generate(stack, PROMPT, metadata=alice)
        await generate(stack, [8, *PROMPT], metadata=alice, cache_salt="own")
        await subscriber.read_until(6)
        assert [prefix[0] for prefix in subscriber.prefixes()].count(9) == 0
        salts = {
            event.stored.cache_salt
            for batch in subscriber.batches
            for event in batch.events
            if event.HasField("stored")
        }
        assert salts == {"", "own"}


async def test_a_flush_forgets_all_prefixes(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel, subscribed(stack) as subscriber:
        await generate(stack, PROMPT)
        await subscriber.read_until(3)
        flushed = await gateway_stub(channel).FlushCache(pb.FlushCacheRequest())
        assert flushed == pb.FlushCacheResponse(success=True, message="all cached prefixes are forgotten")
        await subscriber.read_until(0)
        await generate(stack, PROMPT)
    core = stack.engine.engine.state().core
    assert core is not None
    assert core.num_cached_tokens_total == 0


async def test_a_flush_waits_for_the_last_request_if_it_may(stack: Stack) -> None:
    stack.worker.may_run.clear()
    running = asyncio.create_task(generate(stack, PROMPT))
    await wait_until(lambda: num_running(stack.engine) == 1)
    async with grpc.aio.insecure_channel(stack.address) as channel:
        flush = gateway_stub(channel).FlushCache
        for timeout_s in (0.0, 0.05):
            answer = await flush(pb.FlushCacheRequest(timeout_s=timeout_s))
            assert answer == pb.FlushCacheResponse(message="nothing was flushed: 1 requests live")
        patient = asyncio.create_task(_flush(flush, timeout_s=LIMIT_SECONDS))
        # Not one that gave up: those are forgotten when the loop comes by again.
        await wait_until(
            lambda: any(not asked.answer.done() for asked in stack.engine.engine._flushes._asked)
        )
        stack.worker.may_run.set()
        assert (await patient).success
        await running
    core = stack.engine.engine.state().core
    assert core is not None
    assert (core.num_cached_blocks, core.num_free_blocks) == (0, core.num_blocks)


async def _flush(flush: Any, *, timeout_s: float) -> pb.FlushCacheResponse:
    answer: pb.FlushCacheResponse = await flush(pb.FlushCacheRequest(timeout_s=timeout_s))
    return answer


async def test_a_time_that_is_none_is_refused(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        for timeout_s in (-1, float("nan"), float("inf"), 3601):
            call = gateway_stub(channel).FlushCache(pb.FlushCacheRequest(timeout_s=timeout_s))
            code, message = await status_of(call)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert message.endswith("but must be in [0, 3600]")


async def test_a_gateway_s_request_hits_what_it_was_told(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        request = vllm_engine_pb2.GenerateRequest(
            tokenized=vllm_engine_pb2.TokenizedInput(input_ids=PROMPT),
            sampling_params=vllm_engine_pb2.SamplingParams(max_tokens=2, ignore_eos=True),
        )
        for num_cached_tokens in (0, 8):
            (answer,) = [message async for message in gateway_stub(channel).Generate(request)]
            assert answer.complete.cached_tokens == num_cached_tokens
