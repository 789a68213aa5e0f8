"""An engine under test: in this process, on a unix socket, with a stand-in worker and test front ends.

Knows nothing about any test. Everything ends with the ``async with`` blocks; nothing is left running.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.engine.v1.engine_service_pb2_grpc import EngineServiceStub
from stepwire.v1.generation_service_pb2 import GetServerStateResponse
from stepwire.worker.v1.worker_service_pb2 import LaneSampling

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.core.plan import CoreState
from scheduler_svc.engine.loop import Engine
from scheduler_svc.engine.server import link_options_of, make_engine, start_server
from scheduler_svc.engine.servicer import MAX_OUTBOX_MESSAGES, EngineServicer
from scheduler_svc.engine.tasks import run_until_first
from scheduler_svc.engine.traces import RequestTraces
from scheduler_svc.engine.values import ModelIdentity
from scheduler_svc.engine.waits import REPEAT_SECONDS, Waits
from scheduler_svc.engine.worker_link import WorkerLink
from tests.stand_in_worker import StandInWorker

DEFAULTS: dict[str, Any] = {"check_invariants": True, "max_lease_steps": 1}
"""Steps can be counted where there are no leases, which the stand-in's short steps would bring about."""
LIMIT_SECONDS = 10.0
"""How long any wait in these tests may take."""
IDENTITY = ModelIdentity(config_hash="c0ffee", vocab_size=1000, tokenizer_hash="")


async def wait_until(condition: Callable[[], Any], *, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(limit_seconds):
        # Nothing tells when a plain condition changes; the limit ends the wait.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass(eq=False)
class RunningEngine:
    """One engine, and how to reach it."""

    engine: Engine
    socket_path: str

    async def state(self) -> GetServerStateResponse:
        """Ask for the engine's state as the front end does."""
        async with grpc.aio.insecure_channel(f"unix:{self.socket_path}") as channel:
            response = await EngineServiceStub(channel).GetEngineState(pb.GetEngineStateRequest())
        return response.state

    async def wait_idle(self) -> None:
        """Wait until no request lives, no step is in flight and no tenant's quota is taken."""

        def is_idle() -> bool:
            core = _core(self)
            num_live = core.num_waiting + core.num_running + core.num_preempted
            return (
                len(self.engine._quotas)
                == num_live
                == core.num_steps_in_flight
                == core.num_blocks - core.num_free_blocks - core.num_cached_blocks
                == 0
            )

        await wait_until(is_idle)


def _core(engine: RunningEngine) -> CoreState:
    core = engine.engine.state().core
    assert core is not None, "no worker has come yet"
    return core


def num_waiting(engine: RunningEngine) -> int:
    """Count requests that never ran."""
    return _core(engine).num_waiting


def num_running(engine: RunningEngine) -> int:
    """Count requests that hold a lane."""
    return _core(engine).num_running


def num_preempted(engine: RunningEngine) -> int:
    """Count requests that ran and wait to run again."""
    return _core(engine).num_preempted


def num_finished(engine: RunningEngine) -> int:
    """Count requests that ended."""
    return _core(engine).num_finished_total


def bench_engine(
    *worker_addresses: str,
    link: dict[str, Any] | None = None,
    repeat_seconds: float = REPEAT_SECONDS,
    traces: RequestTraces | None = None,
    **options: Any,
) -> tuple[Engine, tuple[WorkerLink, ...]]:
    """Make an engine and its links to ``worker_addresses``, which are quick to try again.

    Args:
        worker_addresses: host:port of each worker group.
        link: fields of LinkOptions that differ.
        repeat_seconds: how often requests are told that they wait for a worker.
        traces: notes what is traced.
        options: fields of SchedulerConfig.
    """
    config = SchedulerConfig(model="unused", worker=worker_addresses, **(DEFAULTS | options))
    quick = {"first_backoff_seconds": 0.01, "max_backoff_seconds": 0.05, **(link or {})}
    link_options = [replace(one, **quick) for one in link_options_of(config)]
    waits = Waits(repeat_seconds)
    return make_engine(config, IDENTITY, link_options=link_options, waits=waits, traces=traces)


async def run_until_it_fails(*worker_addresses: str, **options: Any) -> None:
    """Run a ``bench_engine`` that cannot go on; raise why."""
    engine, links = bench_engine(*worker_addresses, **options)
    async with asyncio.timeout(LIMIT_SECONDS):
        await run_until_first(engine.run(), *(link.run() for link in links))


@asynccontextmanager
async def running_engine(
    *worker_addresses: str, max_outbox_messages: int = MAX_OUTBOX_MESSAGES, **options: Any
) -> AsyncIterator[RunningEngine]:
    """Run a ``bench_engine``; its loop and links must not have failed at the end."""
    engine, links = bench_engine(*worker_addresses, **options)
    tasks = [asyncio.create_task(engine.run()), *(asyncio.create_task(link.run()) for link in links)]
    with tempfile.TemporaryDirectory() as folder:
        socket_path = f"{folder}/engine.sock"
        servicer = EngineServicer(engine, max_outbox_messages=max_outbox_messages)
        server = await start_server(servicer, socket_path=socket_path)
        try:
            yield RunningEngine(engine=engine, socket_path=socket_path)
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            await server.stop(grace=None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def new_request(
    handle: int, prompt: list[int] | int, *, seed: int | None = None, **fields: Any
) -> pb.NewRequest:
    """Build a request; a prompt given as a number is that many tokens, the first of them the handle's own."""
    if isinstance(prompt, int):
        # Modulo a prime below the vocabulary's size: the handles up to it begin differently.
        prompt = [(50 * handle + index) % 997 for index in range(prompt)]
    sampling = LaneSampling(temperature=1, top_p=1, repetition_penalty=1, **fields.pop("sampling", {}))
    if seed is not None:
        sampling.seed = seed
    return pb.NewRequest(
        handle=handle,
        prompt_token_ids=np.array(prompt, "<i4").tobytes(),
        sampling=sampling,
        has_seed=seed is not None,
        **{"request_id": f"request-{handle}", **fields},
    )


@dataclass(eq=False)
class FrontEndProbe:
    """A front end that remembers all it is told, by handle."""

    call: Any
    infos: list[pb.EngineInfo] = field(default_factory=list)
    outputs: list[pb.StepOutputs] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    started: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Handle to (cached tokens, queue time)."""
    ended: dict[int, pb.EndedRequest] = field(default_factory=dict)
    statuses: dict[int, list[pb.RequestStatus]] = field(default_factory=dict)
    end_status: grpc.StatusCode | None = None

    async def read(self) -> None:
        """Take in what the engine tells, until the stream ends."""
        try:
            async for message in self.call:
                if message.HasField("info"):
                    self.infos.append(message.info)
                else:
                    self._take(message.outputs)
        except grpc.aio.AioRpcError as error:
            self.end_status = error.code()

    def _take(self, outputs: pb.StepOutputs) -> None:
        self.outputs.append(outputs)
        told = np.frombuffer(outputs.status_handles, "<i4").tolist()
        for handle, status in zip(told, outputs.statuses, strict=True):
            self.statuses.setdefault(handle, []).append(status)
        started = np.frombuffer(outputs.started_handles, "<i4").tolist()
        num_cached = np.frombuffer(outputs.started_num_cached_tokens, "<i4").tolist()
        for handle, *facts in zip(started, num_cached, outputs.started_queue_time_ns, strict=True):
            assert handle not in self.started, f"{handle} started twice"
            self.started[handle] = (facts[0], facts[1])
        handles = np.frombuffer(outputs.handles, "<i4").tolist()
        for handle, token_id in zip(handles, np.frombuffer(outputs.token_ids, "<i4").tolist(), strict=True):
            assert handle not in self.ended, f"{handle} got a token after its end"
            self.tokens.setdefault(handle, []).append(token_id)
        for ended in outputs.ended:
            assert ended.handle not in self.ended, f"{ended.handle} ended twice"
            self.ended[ended.handle] = ended

    async def submit(self, *requests: pb.NewRequest) -> None:
        """Send requests in one message."""
        await self.call.write(pb.AttachRequest(new_requests=requests))

    async def end(self, handle: int, reason: pb.EndReason, num_output_tokens: int = 0) -> None:
        """End one of this front end's requests."""
        end = pb.EndRequest(handle=handle, reason=reason, num_output_tokens=num_output_tokens)
        await self.call.write(pb.AttachRequest(end_requests=[end]))

    async def abort(self, request_id: str) -> None:
        """Abort a request of any front end."""
        await self.call.write(pb.AttachRequest(aborts=[pb.AbortById(request_id=request_id)]))

    async def wait_ended(self, *handles: int) -> None:
        """Wait until all of ``handles`` have ended."""
        await wait_until(lambda: all(handle in self.ended for handle in handles))

    async def wait_tokens(self, handle: int, num_tokens: int) -> None:
        """Wait until a request got at least so many tokens."""
        await wait_until(lambda: len(self.tokens.get(handle, [])) >= num_tokens)

    async def wait_ready(self) -> None:
        """Wait until the engine says that it serves."""
        await wait_until(lambda: self.infos and self.infos[-1].is_ready)


async def break_until_ready(worker: StandInWorker, probe: FrontEndProbe) -> None:
    """Break the worker's stream, and wait until its next one serves: only then is it sure to be broken."""
    num_ready = sum(info.is_ready for info in probe.infos)
    worker.break_stream()
    await wait_until(lambda: sum(info.is_ready for info in probe.infos) > num_ready)


@asynccontextmanager
async def attached(engine: RunningEngine, frontend_index: int = 0) -> AsyncIterator[FrontEndProbe]:
    """Attach a test front end, and break its stream at the end."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"unix:{engine.socket_path}", options=options) as channel:
        probe = FrontEndProbe(call=EngineServiceStub(channel).Attach())
        hello = pb.FrontendHello(protocol_version=1, frontend_index=frontend_index)
        await probe.call.write(pb.AttachRequest(hello=hello))
        reader = asyncio.create_task(probe.read())
        try:
            await wait_until(lambda: probe.infos)
            yield probe
        finally:
            probe.call.cancel()
            await asyncio.gather(reader, return_exceptions=True)
