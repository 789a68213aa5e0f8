"""The hot path of `stepwire bench` against a scripted server: what is noted of good and bad requests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import pytest
from stepwire.v1 import types_pb2 as types_pb
from stepwire_cli.bench.client_process import run_jobs
from stepwire_cli.bench.jobs import Job, JobOptions, make_jobs
from stepwire_cli.bench.messages import RoundShare
from stepwire_cli.bench.records import RequestRecord
from stepwire_cli.bench.streams import OpenRequest, Streams, make_streams, open_channels
from stepwire_client.security import token_metadata

from tests.rpc.fake_generation_service import FakeGenerationService

NUM_TOKENS = 3
"""Of the scripted server's answer."""


@pytest.fixture(params=[False, True], ids=["generate", "many"])
async def streams(
    request: pytest.FixtureRequest, fake_address: str
) -> AsyncIterator[tuple[Streams, JobOptions]]:
    channels = open_channels(fake_address, 2)
    streams = make_streams(
        channels, is_many=request.param, timeout_seconds=10.0, metadata=token_metadata("secret")
    )
    yield streams, JobOptions(temperature=0.5, is_many=request.param)
    await streams.close()
    await asyncio.gather(*(channel.close() for channel in channels))


async def record_of(streams: Streams, jobs: list[Job]) -> list[RequestRecord]:
    start = time.monotonic()
    share = RoundShare(jobs=tuple(jobs), concurrency=len(jobs))
    requests = await run_jobs(share, streams.run, start=start)
    return [request.record(start) for request in requests]


async def test_tokens_and_times_are_noted(
    streams: tuple[Streams, JobOptions], fake_service: FakeGenerationService
) -> None:
    fake_service.deltas = [types_pb.OutputDelta(token_ids=[1, 2]), types_pb.OutputDelta(token_ids=[3])]
    jobs = make_jobs([[5], [6], [7]], [NUM_TOKENS] * 3, options=streams[1], round_id="r")
    records = await record_of(streams[0], jobs)
    assert sorted(record.index for record in records) == [0, 1, 2]
    assert streams[0].num_tokens == 9
    assert set(fake_service.authorizations) == {"Bearer secret"}
    for record in records:
        assert (record.error, record.error_message) == ("", "")
        assert list(record.message_num_tokens) == [2, 1]
        assert (record.num_expected_tokens, record.num_output_tokens) == (3, 3)
        assert (record.num_prompt_tokens, record.num_cached_tokens) == (5, 4)
        assert 0 <= record.sent_seconds == record.due_seconds
        times = [record.sent_seconds, *record.message_seconds, record.ended_seconds]
        assert times == sorted(times)
    prompts = sorted(list(item.token_ids.ids) for item in fake_service.requests)
    assert prompts == [[5], [6], [7]]


async def test_a_wrong_number_of_tokens_is_an_error(streams: tuple[Streams, JobOptions]) -> None:
    jobs = make_jobs([[5]], [4], options=streams[1], round_id="r")
    (record,) = await record_of(streams[0], jobs)
    assert record.error == "WRONG_NUM_TOKENS"
    assert record.error_message == "3 tokens came, 3 were told, 4 asked for"


async def test_an_early_end_is_an_error(
    streams: tuple[Streams, JobOptions], fake_service: FakeGenerationService
) -> None:
    fake_service.final = types_pb.FinalOutput(finish_reason=types_pb.FINISH_REASON_ABORT)
    jobs = make_jobs([[5]], [NUM_TOKENS], options=streams[1], round_id="r")
    (record,) = await record_of(streams[0], jobs)
    assert (record.error, record.error_message) == ("FINISH_REASON_ABORT", "r/0 ended early")


async def test_a_status_is_an_error(
    streams: tuple[Streams, JobOptions], fake_service: FakeGenerationService
) -> None:
    fake_service.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
    jobs = make_jobs([[5], [6]], [NUM_TOKENS] * 2, options=streams[1], round_id="r")
    records = await record_of(streams[0], jobs)
    told = [(record.error, record.error_message) for record in records]
    assert told == [("RESOURCE_EXHAUSTED", "the queue is full")] * 2


class EndingCall:
    """A call that ends while it is first written to, as grpc.aio tells it then."""

    def __init__(self) -> None:
        self.was_written = asyncio.Event()

    def _error(self) -> grpc.aio.AioRpcError:
        none = grpc.aio.Metadata()
        details = "Internal error from Core"
        return grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, none, details=details)

    async def write(self, _: bytes) -> None:
        self.was_written.set()
        raise self._error()

    async def read(self) -> None:
        await self.was_written.wait()
        raise self._error()


class EndingChannel:
    """A channel whose calls all are ending ones."""

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., EndingCall]:
        return lambda **_: EndingCall()


async def test_a_status_that_a_write_has_lost_is_told_as_unavailable() -> None:
    streams = make_streams(cast("Any", [EndingChannel()]), is_many=True, timeout_seconds=10.0)
    jobs = make_jobs([[5]], [NUM_TOKENS], options=JobOptions(temperature=0.5, is_many=True), round_id="r")
    (record,) = await record_of(streams, jobs)
    assert (record.error, record.error_message) == ("UNAVAILABLE", "the stream ended while it was written to")
    await streams.close()


async def test_an_error_in_the_stream_ends_its_own_request_only(fake_address: str) -> None:
    channels = open_channels(fake_address, 1)
    streams = make_streams(channels, is_many=True, timeout_seconds=10.0)
    options = JobOptions(temperature=0.5, is_many=True)
    jobs = make_jobs(["bad", "good"], [NUM_TOKENS] * 2, options=options, round_id="r")
    records = {record.index: record for record in await record_of(streams, jobs)}
    assert records[0].error == "INVALID_ARGUMENT"
    assert records[0].error_message == "text is 'bad', but must be good"
    assert records[1].error == ""
    await streams.close()
    await channels[0].close()


async def test_a_stream_without_a_final_message(
    fake_address: str, fake_service: FakeGenerationService
) -> None:
    fake_service.final = None
    channels = open_channels(fake_address, 1)
    streams = make_streams(channels, is_many=False, timeout_seconds=10.0)
    jobs = make_jobs([[5]], [NUM_TOKENS], options=JobOptions(temperature=0.5), round_id="r")
    (record,) = await record_of(streams, jobs)
    assert (record.error, record.error_message) == (
        "WRONG_NUM_TOKENS",
        "the stream ended without a final message",
    )
    await channels[0].close()


def make_shares(num_jobs: int, concurrency: int, arrivals: list[float] | None = None) -> RoundShare:
    jobs = make_jobs(
        [[1]] * num_jobs,
        [1] * num_jobs,
        options=JobOptions(temperature=0.5),
        round_id="r",
        arrivals=arrivals,
    )
    return RoundShare(jobs=tuple(jobs), concurrency=concurrency)


class Slots:
    """Runs jobs that end when the test says so."""

    def __init__(self) -> None:
        self.open: list[Job] = []
        self.max_num_open = 0

    async def run(self, job: Job) -> OpenRequest:
        self.open.append(job)
        self.max_num_open = max(self.max_num_open, len(self.open))
        await asyncio.sleep(0)
        self.open.remove(job)
        return OpenRequest(job, sent=time.monotonic())


async def test_a_closed_loop_keeps_so_many_open() -> None:
    slots = Slots()
    requests = await run_jobs(make_shares(20, 3), slots.run, start=time.monotonic())
    assert (len(requests), slots.max_num_open) == (20, 3)
    assert sorted(request.job.index for request in requests) == list(range(20))


async def test_arrivals_do_not_wait_for_earlier_requests() -> None:
    slots, start = Slots(), time.monotonic()
    requests = await run_jobs(make_shares(3, 1, [0.0, 0.0, 0.05]), slots.run, start=start)
    assert slots.max_num_open == 2
    assert requests[2].sent - start >= 0.05


async def test_a_process_without_jobs_has_nothing_to_do() -> None:
    assert await run_jobs(make_shares(0, 0), Slots().run, start=time.monotonic()) == []
