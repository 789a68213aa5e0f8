"""The clients of the split's cost: a steady load, a flood, and one that asks for the state meanwhile.

Each runs in a process of its own and tells its counts in shared memory or through a pipe. Speaks the
stubs directly, because the clients' cost must leave the cores to what is measured. Knows nothing about
the services' processes.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import grpc
import uvloop
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from benchmarks.split_text import STOP_STRING, Script

PROMPT_TOKENS = 32
_STREAMS_PER_STOP_STRING = 4
_FINISHED_PER_CHECK = 16
_POLL_SECONDS = 0.02

_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
_CONTEXT = get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a client asks for."""

    address: str
    model: Path
    num_streams: int
    num_tokens: int
    """Output tokens of each request."""
    num_channels: int = 1
    """Connections; the kernel gives each to one of the front ends."""
    is_bulk: bool = False
    """One GenerateMany stream a connection instead of a Generate stream a request."""


class Counts:
    """What the load client got so far, shared between processes."""

    names = ("tokens", "messages", "finished", "checked")

    def __init__(self) -> None:
        self.cells: Any = _CONTEXT.Array("q", len(self.names), lock=False)

    def read(self) -> dict[str, int]:
        """Read all counts."""
        return dict(zip(self.names, self.cells, strict=True))


def start_load(load: Load, counts: Counts) -> SpawnProcess:
    """Start streams that each ask again when they end, until the process is terminated."""
    process = _CONTEXT.Process(target=_run_in_loop, args=(_load_forever, load, counts.cells), daemon=True)
    process.start()
    return process


def start_flood(load: Load) -> tuple[SpawnProcess, Connection]:
    """Prepare a flood; send anything to open it.

    Received: "ready"; the time of its start; that of its end, those of first messages, and messages in all.
    """
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_run_in_loop, args=(_flood, load, theirs), daemon=True)
    process.start()
    return process, ours


def poll_state(
    address: str, num_queued: int, *, limit_seconds: float, begin: Callable[[], None]
) -> tuple[float, list[float]]:
    """Ask for the state until ``num_queued`` more requests came than before ``begin``.

    Returns:
        When the answer came that told of all, and how long each answer took.
    """
    latencies: list[float] = []
    with grpc.insecure_channel(address, options=_OWN_CONNECTION) as channel:
        stub = GenerationServiceStub(channel)
        first = _num_known(stub.GetServerState(pb.GetServerStateRequest()))
        begin()
        deadline = time.monotonic() + limit_seconds
        while time.monotonic() < deadline:
            start = time.monotonic()
            state = stub.GetServerState(pb.GetServerStateRequest(), timeout=limit_seconds)
            end = time.monotonic()
            latencies.append(end - start)
            if _num_known(state) - first >= num_queued:
                return end, latencies
            time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{num_queued} requests were not queued within {limit_seconds} s")


def _num_known(state: pb.GetServerStateResponse) -> int:
    return state.num_waiting + state.num_running + state.num_preempted + state.num_finished_total


def _run_in_loop(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    uvloop.run(main(*arguments))


def _channels(load: Load) -> list[grpc.aio.Channel]:
    return [
        grpc.aio.insecure_channel(load.address, options=_OWN_CONNECTION) for _ in range(load.num_channels)
    ]


def _request(script: Script, seed: int, *, num_tokens: int, has_stop_string: bool) -> pb.GenerateRequest:
    stop = types_pb2.StopParams(max_tokens=num_tokens, ignore_eos=True)
    if has_stop_string:
        stop.stop_strings.append(STOP_STRING)
    return pb.GenerateRequest(
        text=script.slice_text(seed, PROMPT_TOKENS), sampling=types_pb2.SamplingParams(seed=seed), stop=stop
    )


class _Asker:
    """One of the streams: what it asks next, and whether it got what it asked."""

    def __init__(self, script: Script, load: Load, *, index: int, cells: Any) -> None:
        self._script = script
        self._load = load
        self._cells = cells
        self._rng = random.Random(index)
        self._has_stop_string = index % _STREAMS_PER_STOP_STRING == 0
        # The first requests differ in length, so that the later ones do not start in step.
        self._num_tokens = self._rng.randint(16, load.num_tokens)
        self._seed = 0
        self._texts: list[str] = []

    def next_request(self) -> pb.GenerateRequest:
        """Ask for other text than before."""
        self._texts = []
        self._seed = self._rng.randrange(1, 2**31)
        return _request(
            self._script, self._seed, num_tokens=self._num_tokens, has_stop_string=self._has_stop_string
        )

    def take(self, message: pb.GenerateResponse | pb.GenerateManyResponse) -> bool:
        """Count a message; tell whether it was the request's last."""
        self._cells[1] += 1
        if message.HasField("delta"):
            self._cells[0] += len(message.delta.token_ids)
            self._texts.append(message.delta.text)
            return False
        usage = message.final.usage
        assert usage.num_output_tokens == self._num_tokens, message
        self._cells[2] += 1
        if self._rng.randrange(_FINISHED_PER_CHECK) == 0:
            expected = self._script.slice_text(self._seed + usage.num_prompt_tokens, self._num_tokens)
            assert "".join(self._texts) == expected, f"seed {self._seed}: wrong text"
            self._cells[3] += 1
        self._num_tokens = self._load.num_tokens
        return True


async def _load_forever(load: Load, cells: Any) -> None:
    script = Script.load(load.model)
    stubs: list[Any] = [GenerationServiceStub(channel) for channel in _channels(load)]
    askers = [_Asker(script, load, index=index, cells=cells) for index in range(load.num_streams)]
    async with asyncio.TaskGroup() as group:
        if load.is_bulk:
            for index, stub in enumerate(stubs):
                group.create_task(_ask_in_bulk(stub, askers[index :: len(stubs)]))
        else:
            for index, asker in enumerate(askers):
                group.create_task(_ask_again_and_again(stubs[index % len(stubs)], asker))


async def _ask_again_and_again(stub: Any, asker: _Asker) -> None:
    while True:
        async for message in stub.Generate(asker.next_request()):
            asker.take(message)


async def _ask_in_bulk(stub: Any, askers: list[_Asker]) -> None:
    call = stub.GenerateMany()

    async def ask(index: int) -> None:
        request = askers[index].next_request()
        request.request_id = str(index)
        await call.write(pb.GenerateManyRequest(generate=request))

    for index in range(len(askers)):
        await ask(index)
    async for message in call:
        if askers[int(message.request_id)].take(message):
            await ask(int(message.request_id))


async def _flood(load: Load, connection: Connection) -> None:
    script = Script.load(load.model)
    requests = [
        _request(script, seed * 17, num_tokens=load.num_tokens, has_stop_string=False)
        for seed in range(1, load.num_streams + 1)
    ]
    stubs = [GenerationServiceStub(channel) for channel in _channels(load)]
    for stub in stubs:  # connected before the flood begins
        await stub.GetModelInfo(pb.GetModelInfoRequest())
    connection.send("ready")
    connection.recv()
    connection.send(time.monotonic())
    calls = [stubs[index % len(stubs)].Generate(request) for index, request in enumerate(requests)]
    drained = await asyncio.gather(*map(_drain, calls))
    first_times, counts = zip(*drained, strict=True)
    connection.send((time.monotonic(), sorted(first_times), sum(counts)))


async def _drain(call: Any) -> tuple[float, int]:
    """Read a stream to its end; return when its first message came, and how many it had."""
    final, num_messages, first_time = None, 0, 0.0
    async for message in call:
        first_time = first_time or time.monotonic()
        final = message
        num_messages += 1
    assert final is not None
    assert final.HasField("final")
    return first_time, num_messages
