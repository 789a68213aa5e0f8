"""Many calls of Generate are waited for at once, as soon as many streams are open."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from stepwire.engine.v1 import engine_service_pb2 as engine_pb
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2

from scheduler_svc.frontend import call_takers
from scheduler_svc.frontend.interceptors import CALL_ID_KEY
from tests.rpc.frontend_bench import LIMIT_SECONDS, FrontendBench

NUM_FEW = 32
NUM_LATER = 70
"""More than there are takers, so that each of them has to wait again."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Methods of the calls that takers took."""
    methods: list[str] = []
    resolve = call_takers._Found.resolve_handler

    def note(found: call_takers._Found, details: grpc.HandlerCallDetails) -> Any:
        methods.append(details.method)
        return resolve(found, details)

    monkeypatch.setattr(call_takers._Found, "resolve_handler", note)
    return methods


async def open_streams(bench: FrontendBench, num_streams: int) -> list[tuple[Any, int]]:
    """Open streams; return each with its handle, once the engine has all."""
    calls = {
        str(index): bench.stub.Generate(
            pb.GenerateRequest(request_id=str(index), token_ids=types_pb2.TokenIds(ids=[1, 2]))
        )
        for index in range(num_streams)
    }
    requests = [await bench.engine.next_request() for _ in calls]
    return [(calls.pop(request.request_id), request.handle) for request in requests]


async def end(bench: FrontendBench, streams: list[tuple[Any, int]]) -> list[list[pb.GenerateResponse]]:
    """Have the engine end all streams; return what each was told."""
    for _, handle in streams:
        bench.engine.send_text(handle, "A")
        bench.engine.end(handle, engine_pb.REQUEST_END_LENGTH)
    async with asyncio.timeout(LIMIT_SECONDS):
        return [[message async for message in call] for call, _ in streams]


async def test_few_streams_are_taken_in_by_the_servers_own_loop(
    bench: FrontendBench, taken: list[str]
) -> None:
    streams = await open_streams(bench, NUM_FEW)
    await end(bench, streams)
    assert not taken


async def test_takers_do_with_a_call_what_the_servers_own_loop_does(
    bench: FrontendBench, taken: list[str]
) -> None:
    first = await open_streams(bench, NUM_FEW + 1)
    await end(bench, first)
    taken.clear()
    streams = await open_streams(bench, NUM_LATER)
    assert set(taken) == {"/stepwire.v1.GenerationService/Generate"}
    assert len(taken) > NUM_LATER // 2  # the server's own loop has its share
    for messages in await end(bench, streams):
        assert "".join(message.delta.text for message in messages) == "A"
        assert messages[-1].HasField("final")
    for call, _ in streams:
        assert await call.code() == grpc.StatusCode.OK
        assert CALL_ID_KEY in dict(await call.trailing_metadata())


async def test_a_call_that_a_taker_took_is_cancelled_with_its_client(
    bench: FrontendBench, taken: list[str]
) -> None:
    streams = await open_streams(bench, NUM_FEW + NUM_LATER)
    assert taken
    for call, _ in streams:
        call.cancel()
    handles = {(await bench.engine.next_end()).handle for _ in streams}
    assert handles == {handle for _, handle in streams}


async def test_a_refusal_has_its_status(bench: FrontendBench, taken: list[str]) -> None:
    streams = await open_streams(bench, NUM_FEW + 1)
    calls = [bench.stub.Generate(pb.GenerateRequest(text="")) for _ in range(NUM_LATER)]
    async with asyncio.timeout(LIMIT_SECONDS):
        assert {await call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert taken
    await end(bench, streams)


async def test_with_a_grpc_that_is_not_known_all_goes_the_servers_own_way(
    bench: FrontendBench,
    taken: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert call_takers.is_grpc_known()
    monkeypatch.setitem(call_takers._KNOWN_PARAMETERS, "_that_is_gone", [])
    assert not call_takers.is_grpc_known()
    with caplog.at_level(logging.WARNING):
        streams = await open_streams(bench, NUM_FEW + NUM_LATER)
    assert "one by one" in caplog.text
    await end(bench, streams)
    assert not taken


async def test_a_taker_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def is_running(self) -> bool:
            return True

        async def _request_registered_call(self, _method: bytes) -> None:
            raise RuntimeError("grpc's inner parts are others")

    class Server:
        _server = Broken()

        def add_registered_method_handlers(self, _service: str, _handlers: dict[str, Any]) -> None:
            pass

    server: Any = Server()
    handler: Any = None
    takers = call_takers.CallTakers(server, ())
    takers.add_registered_method_handlers("some.Service", {"Generate": handler})
    takers.start()
    await takers.wait_ended()
    assert [record.message for record in caplog.records] == [
        "a taker of calls has ended"
    ] * call_takers.NUM_TAKERS
    assert all(record.levelno == logging.ERROR for record in caplog.records)
