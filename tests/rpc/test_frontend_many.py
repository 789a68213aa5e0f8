"""GenerateMany of a front end: many requests on one stream, each with an end of its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import QueueFullError
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.generate_many import ManyGenerations
from scheduler_svc.frontend.open_requests import OpenRequests
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.values import AskedCounts, AskedRequest, Final, TextInput, Told
from tests.rpc.engine_bench import wait_until
from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench, running_frontend

FINAL = Final(
    reason=FinishReason.LENGTH,
    num_prompt_tokens=1,
    num_output_tokens=1,
    num_cached_tokens=0,
    queue_time_ns=0,
    first_token_time_ns=0,
    total_time_ns=0,
)
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[FrontendBench]:
    async with running_frontend(folder, tmp_path, drain_seconds=0.2) as bench:
        yield bench


def generate(request_id: str, text: str = "x") -> pb.GenerateManyRequest:
    return pb.GenerateManyRequest(generate=pb.GenerateRequest(request_id=request_id, text=text))


async def read(call: Any) -> Any:
    return await asyncio.wait_for(call.read(), LIMIT_SECONDS)


async def read_until_end(call: Any) -> dict[str, list[pb.GenerateManyResponse]]:
    """Read to the end of the stream; return the responses by request."""
    by_request: dict[str, list[pb.GenerateManyResponse]] = {}
    while (response := await read(call)) is not grpc.aio.EOF:
        by_request.setdefault(response.request_id, []).append(response)
    return by_request


async def test_two_good_requests_and_a_bad_one(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    for request_id, text in (("a", "x"), ("bad", ""), ("b", "y")):
        await call.write(generate(request_id, text))
    handles = {new.request_id: new.handle for new in [await bench.engine.next_request() for _ in range(2)]}
    assert handles.keys() == {"a", "b"}
    bench.engine.send_tokens([(handles["a"], 65), (handles["b"], 66)])
    bench.engine.send_tokens([(handles["a"], 97), (handles["b"], 98)])
    bench.engine.end(handles["b"], engine_pb.REQUEST_END_LENGTH)
    bench.engine.end(handles["a"], engine_pb.REQUEST_END_LENGTH)
    await call.done_writing()
    by_request = await read_until_end(call)
    assert await call.code() == grpc.StatusCode.OK
    assert by_request["bad"] == [
        pb.GenerateManyResponse(
            request_id="bad",
            error=pb.RequestError(code=INVALID, message="text is '', but must not be empty"),
        )
    ]
    for request_id, text in (("a", "Aa"), ("b", "Bb")):
        responses = by_request[request_id]
        assert "".join(response.delta.text for response in responses) == text
        assert [response.WhichOneof("event") for response in responses].count("final") == 1
        assert responses[-1].final.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_requests_need_an_id_that_is_not_in_use(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(generate(""))
    message = "request_id is '', but must be set on a GenerateMany stream"
    assert (await read(call)).error == pb.RequestError(code=INVALID, message=message)
    await call.write(generate("a"))
    new = await bench.engine.next_request()
    await call.write(generate("a"))
    message = "request_id is 'a', but must not be in use on the same stream"
    assert await read(call) == pb.GenerateManyResponse(
        request_id="a", error=pb.RequestError(code=INVALID, message=message)
    )
    bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
    assert (await read(call)).final.finish_reason == types_pb2.FINISH_REASON_LENGTH
    await call.write(generate("a"))  # free again
    assert (await bench.engine.next_request()).request_id == "a"
    call.cancel()


class ScriptedGenerator:
    """Stands in for Generator: each request ends, as its text says, once ``may_end`` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.num_started = 0
        self.aborted_ids: list[str] = []
        self.open_requests = OpenRequests()

    def check_counts(self, counts: AskedCounts) -> None:
        assert counts == AskedCounts()

    async def run(self, asked: AskedRequest, *, write: Any, seconds_left: Any) -> None:
        del seconds_left
        self.num_started += 1
        await self.may_end.wait()
        self.may_end.clear()
        assert isinstance(asked.prompt, TextInput)
        if asked.prompt.text == "fails":
            raise QueueFullError("full")
        await write(Told(request_id=asked.request_id, output=FINAL, seed=None))

    def abort(self, request_id: str) -> None:
        self.aborted_ids.append(request_id)


@pytest.mark.parametrize("text", ["ends", "fails"])
async def test_an_id_is_free_once_its_end_is_under_way(text: str) -> None:
    generator, messages = ScriptedGenerator(), asyncio.Queue[pb.GenerateManyRequest | None]()
    written: list[pb.GenerateManyResponse] = []
    returned: list[pb.GenerateManyResponse] = []
    may_return = asyncio.Event()

    async def write(response: pb.GenerateManyResponse) -> None:
        written.append(response)  # the client may read it, and ask again, before the write returns
        await may_return.wait()
        returned.append(response)

    async def sent() -> AsyncIterator[pb.GenerateManyRequest]:
        while (message := await messages.get()) is not None:
            yield message

    many = ManyGenerations(cast(Generator, generator), write=write, seconds_left=lambda: None, max_open=8)
    running = asyncio.create_task(many.run(sent()))
    messages.put_nowait(generate("a", text))
    generator.may_end.set()
    await wait_until(lambda: len(written) == 1)
    messages.put_nowait(generate("a", "ends"))
    await wait_until(lambda: generator.num_started == 2)
    may_return.set()
    await wait_until(lambda: len(returned) == 1)
    messages.put_nowait(pb.GenerateManyRequest(abort_request_id="a"))
    await wait_until(lambda: generator.aborted_ids == ["a"])
    generator.may_end.set()
    messages.put_nowait(None)
    await asyncio.wait_for(running, LIMIT_SECONDS)
    assert [response.WhichOneof("event") for response in written] == [
        "final" if text == "ends" else "error",
        "final",
    ]


async def test_a_message_that_cannot_be_read_is_refused_in_band(bench: FrontendBench) -> None:
    call: Any = bench.channel.stream_stream(
        "/stepwire.v1.GenerationService/GenerateMany",
        response_deserializer=pb.GenerateManyResponse.FromString,
    )()
    await call.write(generate("a").SerializeToString())
    new = await bench.engine.next_request()
    await call.write(generate("b", "xy").SerializeToString().replace(b"xy", b"x\xff"))
    response = await read(call)
    assert (response.request_id, response.error.code) == ("", INVALID)
    assert response.error.message.startswith("the message cannot be read: ")
    bench.engine.end(new.handle, engine_pb.REQUEST_END_LENGTH)
    assert (await read(call)).final.finish_reason == types_pb2.FINISH_REASON_LENGTH
    call.cancel()


async def test_an_empty_action_is_refused_in_band(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(pb.GenerateManyRequest())
    message = "action is None, but must be one of generate and abort_request_id"
    assert (await read(call)).error == pb.RequestError(code=INVALID, message=message)
    call.cancel()


async def test_abort_on_the_stream_ends_its_own_requests_only(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(generate("a"))
    new = await bench.engine.next_request()
    for request_id in ("unknown", "a"):
        await call.write(pb.GenerateManyRequest(abort_request_id=request_id))
    assert await bench.engine.next_abort() == "a"
    bench.engine.end(new.handle, engine_pb.REQUEST_END_ABORT)
    response = await read(call)
    assert (response.request_id, response.final.finish_reason) == ("a", types_pb2.FINISH_REASON_ABORT)
    call.cancel()


async def test_cancelling_the_stream_ends_all_its_requests(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(generate("a"))
    await call.write(generate("b"))
    handles = {(await bench.engine.next_request()).handle for _ in range(2)}
    call.cancel()
    ends = [await bench.engine.next_end() for _ in range(2)]
    assert {end.handle for end in ends} == handles
    assert {end.reason for end in ends} == {engine_pb.END_REASON_DISCONNECT}


async def test_an_unexpected_error_ends_one_request_only(
    bench: FrontendBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read_prompt = ServedModel.read_prompt

    async def fail_once(*_: Any) -> Any:
        monkeypatch.setattr(ServedModel, "read_prompt", read_prompt)
        raise KeyError("secret")

    monkeypatch.setattr(ServedModel, "read_prompt", fail_once)
    call = bench.stub.GenerateMany()
    await call.write(generate("a"))
    error = (await read(call)).error
    assert error.code == grpc.StatusCode.INTERNAL.value[0]
    assert error.message == "internal error: the server's log has the details"
    assert "KeyError: 'secret'" in caplog.text
    await call.write(generate("b"))
    assert (await bench.engine.next_request()).request_id == "b"
    call.cancel()


async def test_an_engine_that_goes_ends_requests_and_leaves_the_stream(bench: FrontendBench) -> None:
    call = bench.stub.GenerateMany()
    await call.write(generate("a"))
    await bench.engine.next_request()
    bench.engine.break_stream()
    response = await read(call)
    assert (response.request_id, response.error.code) == ("a", grpc.StatusCode.UNAVAILABLE.value[0])
    await call.done_writing()
    assert await read(call) is grpc.aio.EOF
