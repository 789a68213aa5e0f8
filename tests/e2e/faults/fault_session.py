"""Both services as processes that come back when they die, with links that can break, for many fault runs.

    clients ──clients' link──▶ front ends, engine ──steps' link──▶ worker     (one or two worker groups)

Knows how to hurt each part, how to heal all, and what must hold afterwards; knows nothing about requests
or when what is hurt.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub
from stepwire.worker.v1 import worker_service_pb2 as worker_pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from tests.e2e.scheduler_processes import SchedulerProcesses, find_processes
from tools.link_proxy import LinkProxy
from tools.services import Service

SCHEDULER = "tests.e2e.faults.impatient_scheduler"
SETTLE_LIMIT_SECONDS = 60.0
CALL_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_RESTARTED = "; starting it again"
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShape:
    """How many of what a session has."""

    num_groups: int
    num_frontends: int
    max_steps_in_flight: int
    steps_delay_seconds: float = 0.0
    """How far away the workers are, each way: the engine leases steps to those that are."""


@dataclass(slots=True, kw_only=True)
class WorkerPlace:
    """A worker group: the link that steps take to it, and the process that fills the place now."""

    link: LinkProxy
    flags: tuple[str, ...]
    service: Service | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who does something to the process."""

    async def start(self) -> None:
        """Start a process, and lead the link to it."""
        self.service = Service.start("worker_svc", *self.flags)
        self.link.lead_to(await asyncio.to_thread(self.service.address))

    @property
    def address(self) -> str:
        """Where the process itself listens."""
        return self.running.address()

    @property
    def running(self) -> Service:
        """The process that fills the place."""
        assert self.service is not None, "not started"
        return self.service

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.running.process.send_signal(number)

    def end(self) -> None:
        """End the process, if there is one."""
        if self.service is not None:
            self.service.kill()

    async def kill_and_restart(self) -> None:
        """Kill the process and start another."""
        await asyncio.to_thread(self.running.kill)
        await self.start()


@dataclass(slots=True, kw_only=True)
class FaultSession:
    """Running services, and what was done to them."""

    shape: SessionShape
    workers: tuple[WorkerPlace, ...]
    scheduler: Service
    address: str
    """Of the front ends themselves."""
    clients_link: LinkProxy
    num_lines_read: int = 0
    parts_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who does something to a process of the scheduler."""
    num_epochs_lost: int = 0
    """Worker epochs that ended between the last two times that all had settled, as the engine counts."""
    _epochs_before: int = 0
    _uptime_seconds: float = 0.0
    killed: dict[int, str] = field(default_factory=dict)
    """The scheduler's parts that were killed since the last look: their names, by process id."""

    def processes(self) -> SchedulerProcesses:
        """Find the scheduler's parts; those that were killed may not have ended yet."""
        return find_processes(self.scheduler.process.pid, self.address)

    def kill(self, pid: int, name: str) -> None:
        """Kill a part of the scheduler."""
        self.killed[pid] = name
        os.kill(pid, signal.SIGKILL)

    def heal_links(self) -> None:
        """Make all links whole, and as fast as they were."""
        for link in (self.clients_link, *(worker.link for worker in self.workers)):
            link.mend()
            link.resume()
            self.end_delay(link)

    def end_delay(self, link: LinkProxy) -> None:
        """Make a link as fast as it was."""
        link.delay(0.0 if link is self.clients_link else self.shape.steps_delay_seconds)

    async def is_group_serving(self, worker: WorkerPlace) -> bool:
        """Ask a front end for the health of a worker group."""
        return await self._health(f"worker/{worker.link.address}")

    async def settle(self) -> list[str]:
        """Wait until all is as before any fault; return what never came to be so."""
        self.heal_links()
        deadline = time.monotonic() + SETTLE_LIMIT_SECONDS
        while unsettled := await self._unsettled():
            if time.monotonic() > deadline:
                return [f"not settled: {unsettled}", *self.news()]
            await asyncio.sleep(_LOOK_SECONDS)
        self._count_epochs(await self._state())
        return self.news()

    def _count_epochs(self, state: pb.GetServerStateResponse) -> None:
        num_lost = sum(worker.num_epochs_lost for worker in state.workers)
        uptime_seconds = state.uptime.ToTimedelta().total_seconds()
        if uptime_seconds < self._uptime_seconds:  # another engine, which counts from 0
            self._epochs_before = 0
        self.num_epochs_lost = num_lost - self._epochs_before
        self._epochs_before, self._uptime_seconds = num_lost, uptime_seconds

    @property
    def _num_asks(self) -> int:
        """So many calls, each over a connection of its own, meet every front end, most likely."""
        return 1 if self.shape.num_frontends == 1 else 4 * self.shape.num_frontends

    async def _unsettled(self) -> str:
        """Name the first thing that is not as it must be; empty: none."""
        parts = self.processes()
        if (len(parts.engines), len(parts.frontends)) != (1, self.shape.num_frontends):
            return f"processes {parts}"
        try:
            for name in ("", "ready", *(f"worker/{worker.link.address}" for worker in self.workers)):
                for _ in range(self._num_asks):
                    if not await self._health(name):
                        return f"health of {name!r}"
            return _held(await self._state()) or await self._lanes_held()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"

    async def _lanes_held(self) -> str:
        for worker in self.workers:
            async with grpc.aio.insecure_channel(worker.address, options=_CHANNEL_OPTIONS) as channel:
                ask = WorkerServiceStub(channel).GetWorkerInfo
                info = await ask(worker_pb.GetWorkerInfoRequest(), timeout=CALL_SECONDS)
            if info.num_lanes_held:
                return f"{info.num_lanes_held} lanes are held"
        return ""

    async def _health(self, name: str) -> bool:
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
            check: Callable[..., object] = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
            answer = await check(health_pb2.HealthCheckRequest(service=name), timeout=CALL_SECONDS)  # type: ignore[misc]
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _state(self) -> pb.GetServerStateResponse:
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
            ask = GenerationServiceStub(channel).GetServerState
            return await ask(pb.GetServerStateRequest(), timeout=CALL_SECONDS)

    def news(self) -> list[str]:
        """Return what the services printed that they should not have, since the last look."""
        lines = self.scheduler.lines[self.num_lines_read :]
        self.num_lines_read += len(lines)
        deaths = [line.strip() for line in lines if _RESTARTED in line]
        problems = [line for line in deaths if "exit code -9" not in line]
        if len(deaths) != len(self.killed):
            problems.append(f"{len(self.killed)} parts were killed ({self.killed}), but died: {deaths}")
        self.killed.clear()
        if any("Traceback" in line for line in lines):
            problems.append("the scheduler printed a traceback:\n" + "".join(lines[-60:]))
        for worker in self.workers:
            printed = worker.running.lines
            if worker.running.process.poll() is not None or any("Traceback" in line for line in printed):
                problems.append("a worker ended or printed a traceback:\n" + "".join(printed[-60:]))
        return problems


def _held(state: pb.GetServerStateResponse) -> str:
    """Name what is held though nobody asks for anything."""
    if state.num_waiting or state.num_running or state.num_preempted:
        return f"{state.num_waiting} wait, {state.num_running} run, {state.num_preempted} are preempted"
    if state.kv_cache_usage_ratio or state.num_free_blocks + state.num_cached_blocks != state.num_blocks:
        return f"blocks are held: {state}"
    if any(worker.num_steps_in_flight for worker in state.workers):
        return "steps are in flight"
    return ""


@asynccontextmanager
async def running_session(
    shape: SessionShape, model: Path, *, worker_flags: tuple[str, ...], scheduler_flags: tuple[str, ...]
) -> AsyncIterator[FaultSession]:
    """Run all services of a session, and end them in the end."""
    common = ("--model", str(model), "--port", "0", "--log-level", "warning")
    async with AsyncExitStack() as stack:
        workers = []
        for _ in range(shape.num_groups):
            link = await _linked(stack, shape.steps_delay_seconds)
            worker = WorkerPlace(link=link, flags=(*common, *worker_flags))
            stack.callback(worker.end)
            workers.append(worker)
        await asyncio.gather(*(worker.start() for worker in workers))
        flags = [flag for worker in workers for flag in ("--worker", worker.link.address)]
        flags += ["--frontends", str(shape.num_frontends)]
        flags += ["--max-steps-in-flight", str(shape.max_steps_in_flight)]
        scheduler = Service.start(SCHEDULER, *common, *flags, *scheduler_flags)
        stack.push_async_callback(asyncio.to_thread, _end, scheduler)
        address = await asyncio.to_thread(scheduler.address)
        clients_link = await _linked(stack)
        clients_link.lead_to(address)
        yield FaultSession(
            shape=shape,
            workers=tuple(workers),
            scheduler=scheduler,
            address=address,
            clients_link=clients_link,
        )


async def _linked(stack: AsyncExitStack, delay_seconds: float = 0.0) -> LinkProxy:
    link = LinkProxy("127.0.0.1:9", delay_seconds=delay_seconds)
    await link.start()
    stack.push_async_callback(link.stop)
    return link


def _end(service: Service) -> None:
    if service.process.poll() is None:
        service.stop()
