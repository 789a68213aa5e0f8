"""What a GenerateMany stream holds for a client that does not read, and how it ends when the server stops."""

import asyncio
import gc
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb

from scheduler_svc.errors import QueueFullError
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.generate_many import ManyGenerations
from scheduler_svc.frontend.open_requests import OpenRequests
from scheduler_svc.frontend.values import AskedCounts, AskedRequest
from tests.rpc.engine_bench import wait_until
from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench, running_frontend

LONG_ID = "x" * 129
LONG_ID_MESSAGE = "number of characters in request_id is 129, but must be at most 128"


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[FrontendBench]:
    async with running_frontend(folder, tmp_path, drain_seconds=LIMIT_SECONDS) as bench:
        yield bench


def generate(request_id: str, text: str = "x") -> pb.GenerateManyRequest:
    return pb.GenerateManyRequest(generate=pb.GenerateRequest(request_id=request_id, text=text))


async def read(call: Any) -> Any:
    return await asyncio.wait_for(call.read(), LIMIT_SECONDS)


class AbortedGenerator:
    """Stands in for Generator: each request fails, once its id is aborted or, without ``waits``, at once."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.open_requests = OpenRequests()
        self.started_ids: list[str] = []
        self._aborts: dict[str, asyncio.Event] = {}

    def check_counts(self, counts: AskedCounts) -> None:
        """Whatever a message holds is not too much."""

    async def run(self, asked: AskedRequest, *, write: Any, seconds_left: Any) -> None:
        del write, seconds_left
        self.started_ids.append(asked.request_id)
        if self.waits:
            await self._aborts.setdefault(asked.request_id, asyncio.Event()).wait()
        raise QueueFullError(asked.request_id)

    def has_started(self, request_id: str) -> bool:
        return request_id in self.started_ids

    def abort(self, request_id: str) -> None:
        self._aborts[request_id].set()


class Stream:
    """A stream whose client reads nothing until ``may_read`` is set."""

    def __init__(self, generator: AbortedGenerator, *, max_open: int) -> None:
        self.may_read = asyncio.Event()
        self.num_taken = 0
        self.told_ids: list[str] = []
        self._many = ManyGenerations(
            cast(Generator, generator), write=self._write, seconds_left=lambda: None, max_open=max_open
        )

    def start(self, *messages: pb.GenerateManyRequest) -> asyncio.Task[None]:
        async def sent() -> AsyncIterator[pb.GenerateManyRequest]:
            for message in messages:
                self.num_taken += 1
                yield message
                await asyncio.sleep(0)

        return asyncio.create_task(self._many.run(sent()))

    async def _write(self, response: pb.GenerateManyResponse) -> None:
        await self.may_read.wait()
        self.told_ids.append(response.request_id)


async def pass_rounds() -> None:
    """Let everything come as far as it can."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_no_more_is_taken_in_from_a_client_that_does_not_read() -> None:
    generator = AbortedGenerator()
    stream, ids = Stream(generator, max_open=3), [str(number) for number in range(20)]
    running = stream.start(*map(generate, ids))
    await pass_rounds()
    assert generator.started_ids == ["0", "1", "2"]
    assert stream.num_taken == 4  # the one that waits
    stream.may_read.set()
    await asyncio.wait_for(running, LIMIT_SECONDS)
    assert generator.started_ids == stream.told_ids == ids


async def test_an_end_that_waits_to_be_read_does_not_hold_its_request() -> None:
    stream = Stream(AbortedGenerator(), max_open=20)
    running = stream.start(*(generate(f"unread-{number}") for number in range(10)))
    await pass_rounds()
    assert stream.num_taken == 10
    assert num_unread(AskedRequest) == 0
    assert num_unread(pb.GenerateRequest) <= 1  # the last message that was read
    stream.may_read.set()
    await asyncio.wait_for(running, LIMIT_SECONDS)


def num_unread(kind: type[AskedRequest] | type[pb.GenerateRequest]) -> int:
    alive = (one for one in gc.get_objects() if type(one) is kind)
    return sum(one.request_id.startswith("unread-") for one in alive)


async def test_a_full_stream_still_takes_aborts() -> None:
    generator = AbortedGenerator(waits=True)
    stream = Stream(generator, max_open=2)
    stream.may_read.set()
    running = stream.start(
        generate("a"),
        generate("b"),
        pb.GenerateManyRequest(abort_request_id="a"),
        generate("c"),
        generate("d"),  # waits for one of the others
        pb.GenerateManyRequest(abort_request_id="b"),
    )
    await pass_rounds()
    assert (stream.told_ids, generator.started_ids) == (["a"], ["a", "b", "c"])
    for request_id in "cbd":  # by Abort, which no stream holds up
        await wait_until(partial(generator.has_started, request_id))
        generator.abort(request_id)
    await asyncio.wait_for(running, LIMIT_SECONDS)
    assert sorted(stream.told_ids) == ["a", "b", "c", "d"]


async def test_an_id_that_is_too_long_is_refused_in_band(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(generate(LONG_ID))
    response = await read(call)
    assert (response.request_id, response.error.message) == (LONG_ID, LONG_ID_MESSAGE)
    await call.write(pb.GenerateManyRequest(abort_request_id=LONG_ID))  # of no request here
    await call.write(generate("a"))
    assert (await bench.engine.next_request()).request_id == "a"
    assert bench.engine.aborted_ids.empty()
    call.cancel()


async def test_a_stop_ends_an_idle_stream_with_the_reason(bench: FrontendBench) -> None:
    unused, used = bench.stub.GenerateMany(), bench.stub.GenerateMany()
    await used.write(generate("a"))
    new = await bench.engine.next_request()
    bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
    assert (await read(used)).HasField("final")
    await unused.wait_for_connection()
    bench.stop.set()
    for call in (unused, used):
        await expect_drained(call)
    await asyncio.wait_for(bench.serving, LIMIT_SECONDS)


async def test_a_stop_lets_a_stream_s_requests_end_first(bench: FrontendBench) -> None:
    call, idle = bench.stub.GenerateMany(), bench.stub.GenerateMany()
    await call.write(generate("a"))
    new = await bench.engine.next_request()
    bench.stop.set()
    await expect_drained(idle)
    await call.write(generate("b"))
    response = await read(call)
    assert (response.request_id, response.error.code) == ("b", grpc.StatusCode.UNAVAILABLE.value[0])
    bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
    response = await read(call)
    assert (response.request_id, response.HasField("final")) == ("a", True)
    await expect_drained(call)
    await asyncio.wait_for(bench.serving, LIMIT_SECONDS)


async def expect_drained(call: Any) -> None:
    """Expect the status that tells where new requests go."""
    assert await asyncio.wait_for(call.code(), LIMIT_SECONDS) == grpc.StatusCode.UNAVAILABLE
    assert await call.details() == "the server is stopping and takes no new requests"
    assert dict(await call.trailing_metadata())["retry-after-ms"] == "1000"
