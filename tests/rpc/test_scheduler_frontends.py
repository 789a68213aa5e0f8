"""Two front ends on one port: one engine behind them, and one that dies takes only its own requests along."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import types_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from benchmarks.process_cost import scheduler_processes
from tests.scraping import metrics_url, scrape
from tools.services import Service, running

LIMIT_SECONDS = 20.0
NUM_CLIENTS = 24
"""The kernel picks a front end for each connection: that all of these get the same one never happens."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def scheduler(checkpoint_folder: Callable[[str], Path]) -> Iterator[Service]:
    """Run two front ends against a stand-in worker that takes 50 ms a step."""
    common = ("--model", str(checkpoint_folder("qwen3_tiny")), "--port", "0")
    slow = ("--step-seconds", "0.05", "--max-num-seqs", "64", "--max-model-len", "512")
    with running("tests.stand_in_process", *common, *slow) as worker:
        flags = (
            "--worker",
            worker.address(),
            "--frontends",
            "2",
            "--drain-seconds",
            "0",
            "--metrics-port",
            "0",
        )
        with running("scheduler_svc", *common, *flags, "--check-invariants") as service:
            yield service


@dataclass(eq=False)
class Client:
    """A client with a connection of its own and one running request."""

    stub: Any
    call: Any

    @classmethod
    async def connect(cls, address: str, stack: AsyncExitStack, *, request_id: str) -> "Client":
        """Connect, start a request and wait for its first output."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
        stub = GenerationServiceStub(channel)
        client = cls(stub=stub, call=stub.Generate(request(request_id), wait_for_ready=True))
        message = await asyncio.wait_for(client.call.read(), LIMIT_SECONDS)
        assert message.request_id == request_id
        return client

    async def state(self) -> pb.GetServerStateResponse:
        """Ask this client's front end for the state."""
        state: pb.GetServerStateResponse = await self.stub.GetServerState(pb.GetServerStateRequest())
        return state


def request(request_id: str) -> pb.GenerateRequest:
    """Ask for as many tokens as there can be: 25 s of them."""
    stop = types_pb2.StopParams(ignore_eos=True)
    token_ids = types_pb2.TokenIds(ids=[5, 6, 7])
    return pb.GenerateRequest(request_id=request_id, token_ids=token_ids, stop=stop)


async def connect_all(address: str, stack: AsyncExitStack, *, name: str) -> list[Client]:
    """Connect all clients at once."""
    ids = [f"{name}-{index}" for index in range(NUM_CLIENTS)]
    return await asyncio.gather(*(Client.connect(address, stack, request_id=each) for each in ids))


def survivor(clients: list[Client]) -> Client:
    """Return a client whose request goes on."""
    return next(client for client in clients if not client.call.done())


def num_first_tokens(scheduler: Service, *, frontend: str) -> float:
    """Scrape how many requests of a front end, of all its lives, had a first token."""
    name = "stepwire_frontend_time_to_first_token_seconds_count"
    return scrape(metrics_url(scheduler), name, frontend=frontend)


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until ``await condition()`` holds."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_every_front_end_tells_the_whole_state_and_knows_all_ids(scheduler: Service) -> None:
    async with AsyncExitStack() as stack:
        clients = await connect_all(scheduler.address(), stack, name="whole")
        states = [await client.state() for client in clients]
        assert {state.num_running for state in states} == {NUM_CLIENTS}
        calls = [client.stub.Generate(request("whole-0")) for client in clients]
        errors = await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
        assert {error.code() for error in errors} == {grpc.StatusCode.INVALID_ARGUMENT}  # type: ignore[union-attr]
        for index, client in enumerate(clients):  # each aborts another's, on whichever front end that is
            await client.stub.Abort(pb.AbortRequest(request_id=f"whole-{(index + 1) % NUM_CLIENTS}"))

        async def is_idle() -> bool:
            return (await clients[0].state()).num_running == 0

        await wait_until(is_idle)


async def test_a_front_end_that_dies_takes_only_its_own_requests_along(scheduler: Service) -> None:
    async with AsyncExitStack() as stack:
        clients = await connect_all(scheduler.address(), stack, name="alive")
        num_first_before = num_first_tokens(scheduler, frontend="1")
        os.kill(scheduler_processes(scheduler.process.pid)["front end 1"], signal.SIGKILL)

        async def are_others_gone() -> bool:
            num_ended = sum(client.call.done() for client in clients)
            try:
                num_running = (await survivor(clients).state()).num_running
            except grpc.aio.AioRpcError:  # it was none: its own call had only not been told yet
                return False
            return bool(num_ended and num_running + num_ended == NUM_CLIENTS)

        await wait_until(are_others_gone)
        ended = [client for client in clients if client.call.done()]
        assert {await client.call.code() for client in ended} == {grpc.StatusCode.UNAVAILABLE}
        assert 0 < len(ended) < NUM_CLIENTS
        for client in set(clients) - set(ended):
            assert (await client.state()).num_running == NUM_CLIENTS - len(ended)
            assert (await asyncio.wait_for(client.call.read(), LIMIT_SECONDS)).HasField("delta")
        scheduler.wait_for("front end 1 ended: exit code -9", LIMIT_SECONDS)

        async def has_come_back() -> bool:
            return sum("front end 1 attached" in line for line in list(scheduler.lines)) == 2

        await wait_until(has_come_back)
        assert num_first_tokens(scheduler, frontend="1") == num_first_before
        await connect_all(scheduler.address(), stack, name="again")
        assert num_first_tokens(scheduler, frontend="1") > num_first_before
