"""Does to a session's services and links what a fault says.

Every fault ends here: what was stopped goes on or is killed, what was cut is mended. Knows nothing about
requests, nor about when a fault is due.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import grpc

from tests.e2e.faults.fault_plan import ON_PARTS, ON_WORKERS, Fault, FaultKind
from tests.e2e.faults.fault_session import FaultSession, WorkerPlace
from tools.link_proxy import LinkProxy

NOTICE_LIMIT_SECONDS = 30.0
_LOOK_SECONDS = 0.05


async def inflict(session: FaultSession, fault: Fault) -> list[str]:
    """Do what the fault says; return what was not as it should be."""
    act = _ACTS[fault.kind]
    if fault.kind in ON_WORKERS:
        async with _worker(session, fault).lock:
            return await act(session, fault)
    if fault.kind in ON_PARTS:
        async with session.parts_lock:
            return await act(session, fault)
    return await act(session, fault)


async def _kill_worker(session: FaultSession, fault: Fault) -> list[str]:
    await _worker(session, fault).kill_and_restart()
    return []


async def _hang_worker(session: FaultSession, fault: Fault) -> list[str]:
    worker = _worker(session, fault)
    worker.send(signal.SIGSTOP)
    problems = await _noticed(session, worker)
    await worker.kill_and_restart()
    return problems


async def _thaw_worker(session: FaultSession, fault: Fault) -> list[str]:
    worker = _worker(session, fault)
    worker.send(signal.SIGSTOP)
    problems = await _noticed(session, worker)
    worker.send(signal.SIGCONT)
    return problems


async def _freeze_worker(session: FaultSession, fault: Fault) -> list[str]:
    worker = _worker(session, fault)
    worker.send(signal.SIGSTOP)
    await asyncio.sleep(fault.seconds)
    worker.send(signal.SIGCONT)
    return []


async def _noticed(session: FaultSession, worker: WorkerPlace) -> list[str]:
    """Wait until the worker's group is not serving by its health name."""
    deadline = time.monotonic() + NOTICE_LIMIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if not await session.is_group_serving(worker):
                return []
        except grpc.aio.AioRpcError as error:
            if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                return [f"health: {error.code().name} {error.details()}"]
        await asyncio.sleep(_LOOK_SECONDS)
    return ["a worker that hangs was not noticed"]


def _kill(name: str) -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        if (pid := _part(session, fault, name)) is not None:
            session.kill(pid, name)
        return []

    return act


def _hang(name: str) -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        if (pid := _part(session, fault, name)) is not None:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            session.kill(pid, name)
        return []

    return act


def _freeze(name: str) -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        if (pid := _part(session, fault, name)) is not None:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            os.kill(pid, signal.SIGCONT)
        return []

    return act


def _part(session: FaultSession, fault: Fault, name: str) -> int | None:
    """Find the process to hurt; None where another fault has just ended it."""
    parts = session.processes()
    pids = parts.engines if name == "engine" else parts.frontends
    pids = tuple(pid for pid in pids if pid not in session.killed)
    return pids[fault.which % len(pids)] if pids else None


def _worker(session: FaultSession, fault: Fault) -> WorkerPlace:
    return session.workers[fault.which % len(session.workers)]


def _cut(link_of: "LinkOf") -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        link = link_of(session, fault)
        link.cut()
        await asyncio.sleep(fault.seconds)
        link.mend()
        return []

    return act


def _cut_inside(link_of: "LinkOf") -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        link = link_of(session, fault)
        link.cut_after(fault.num_bytes, fault.direction)
        deadline = time.monotonic() + fault.seconds
        while not link.is_cut() and time.monotonic() < deadline:  # noqa: ASYNC110  # a proxy tells nobody
            await asyncio.sleep(_LOOK_SECONDS)
        link.cut()  # where too little passed, now
        link.mend()
        return []

    return act


def _stall(link_of: "LinkOf") -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        link = link_of(session, fault)
        link.stall(fault.direction)
        await asyncio.sleep(fault.seconds)
        link.resume()
        return []

    return act


def _delay(link_of: "LinkOf") -> "Act":
    async def act(session: FaultSession, fault: Fault) -> list[str]:
        link = link_of(session, fault)
        link.delay(fault.seconds / 20)
        await asyncio.sleep(fault.seconds)
        session.end_delay(link)
        return []

    return act


async def _lose_steps(session: FaultSession, fault: Fault) -> list[str]:
    worker = _worker(session, fault)
    worker.link.stall()
    problems = await _noticed(session, worker)
    worker.link.resume()
    return problems


async def _nothing_more(session: FaultSession, fault: Fault) -> list[str]:
    """Leave it at the requests of the storm, which are in the plan."""
    del session, fault
    return []


def _steps_link(session: FaultSession, fault: Fault) -> LinkProxy:
    return _worker(session, fault).link


def _clients_link(session: FaultSession, fault: Fault) -> LinkProxy:
    del fault
    return session.clients_link


Act = Callable[[FaultSession, Fault], Awaitable[list[str]]]
LinkOf = Callable[[FaultSession, Fault], LinkProxy]
_ACTS: dict[FaultKind, Act] = {
    FaultKind.KILL_WORKER: _kill_worker,
    FaultKind.HANG_WORKER: _hang_worker,
    FaultKind.THAW_WORKER: _thaw_worker,
    FaultKind.FREEZE_WORKER: _freeze_worker,
    FaultKind.KILL_ENGINE: _kill("engine"),
    FaultKind.HANG_ENGINE: _hang("engine"),
    FaultKind.FREEZE_ENGINE: _freeze("engine"),
    FaultKind.KILL_FRONTEND: _kill("front end"),
    FaultKind.HANG_FRONTEND: _hang("front end"),
    FaultKind.FREEZE_FRONTEND: _freeze("front end"),
    FaultKind.CUT_STEPS: _cut(_steps_link),
    FaultKind.CUT_IN_STEP: _cut_inside(_steps_link),
    FaultKind.STALL_STEPS: _stall(_steps_link),
    FaultKind.LOSE_STEPS: _lose_steps,
    FaultKind.DELAY_STEPS: _delay(_steps_link),
    FaultKind.CUT_CLIENTS: _cut(_clients_link),
    FaultKind.CUT_IN_REPLY: _cut_inside(_clients_link),
    FaultKind.STALL_CLIENTS: _stall(_clients_link),
    FaultKind.DELAY_CLIENTS: _delay(_clients_link),
    FaultKind.DEADLINE_STORM: _nothing_more,
    FaultKind.CANCEL_STORM: _nothing_more,
}
