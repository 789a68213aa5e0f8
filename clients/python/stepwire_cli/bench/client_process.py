"""A client process: takes its share of each round over a pipe, runs it, hands back records.

Knows nothing about cases, figures or the other processes.
"""

import asyncio
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import grpc

from stepwire_cli.bench.jobs import Job
from stepwire_cli.bench.messages import (
    ClientFailed,
    ClientSettings,
    Progress,
    Ready,
    RoundShare,
    ShareDone,
    StartAt,
)
from stepwire_cli.bench.records import ClientUsage
from stepwire_cli.bench.streams import OpenRequest, make_streams, open_channels

CONNECT_SECONDS = 30.0
PROGRESS_SECONDS = 0.25


def run_client(connection: "Connection[Any, Any]", settings: ClientSettings) -> None:
    """Serve rounds until the driver closes the pipe or goes away; the target of a process."""
    # Ctrl-C goes to all processes of a terminal; this one ends when the driver does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(_serve(connection, settings))
    except (EOFError, BrokenPipeError):
        return  # the driver is done or gone, and nobody reads what would be told
    except Exception as error:  # the driver tells it and ends the program
        connection.send(ClientFailed(reason=f"{type(error).__name__}: {error}"))


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's where it is installed: a message costs less there."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415  # optional

    return uvloop.new_event_loop


async def _serve(connection: "Connection[Any, Any]", settings: ClientSettings) -> None:
    channels = open_channels(settings.address, settings.num_channels, tls=settings.tls)
    try:
        await _connect(channels, settings.address)
        connection.send(Ready())
        # Blocks the loop between rounds, when there is nothing for it to do.
        while True:
            share: RoundShare = connection.recv()
            connection.send(await _run_share(connection, share, settings=settings, channels=channels))
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def _connect(channels: list[grpc.aio.Channel], address: str) -> None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
    except TimeoutError:
        num_open = sum(channel.get_state() is grpc.ChannelConnectivity.READY for channel in channels)
        told = f"{num_open} of {len(channels)} connections to {address} within {CONNECT_SECONDS:g} s"
        raise TimeoutError(told) from None


async def _run_share(
    connection: "Connection[Any, Any]",
    share: RoundShare,
    *,
    settings: ClientSettings,
    channels: list[grpc.aio.Channel],
) -> ShareDone:
    streams = make_streams(
        channels,
        is_many=settings.is_many,
        timeout_seconds=settings.timeout_seconds,
        metadata=settings.metadata,
    )
    gc.collect()
    gc.disable()  # no pauses while it is measured
    connection.send(Ready())
    command = connection.recv()
    assert isinstance(command, StartAt), f"not a start: {command!r}"
    start = command.monotonic_seconds
    await asyncio.sleep(start - time.monotonic())
    cpu, loop_cpu = time.process_time(), time.thread_time()

    async def tell_progress() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            connection.send(Progress(num_tokens=streams.num_tokens))

    progress = asyncio.create_task(tell_progress())
    requests = await run_jobs(share, streams.run, start=start)
    usage = ClientUsage(
        wall_seconds=time.monotonic() - start,
        cpu_seconds=time.process_time() - cpu,
        loop_cpu_seconds=time.thread_time() - loop_cpu,
    )
    progress.cancel()
    await streams.close()
    gc.enable()
    return ShareDone(records=tuple(request.record(start) for request in requests), usage=usage)


async def run_jobs(
    share: RoundShare, run: Callable[[Job], Awaitable[OpenRequest]], *, start: float
) -> list[OpenRequest]:
    """Run all jobs: those with a due time then, the others as their turn comes.

    Args:
        share: the jobs; either all or none have a due time.
        run: runs one.
        start: when the round starts, by the monotonic clock.
    """
    if any(job.due_seconds is not None for job in share.jobs):
        return list(await asyncio.gather(*(_run_when_due(job, run, start) for job in share.jobs)))
    requests: list[OpenRequest] = []
    waiting = iter(share.jobs)
    num_slots = min(share.concurrency, len(share.jobs))
    await asyncio.gather(*(_run_in_turn(waiting, run, requests) for _ in range(num_slots)))
    return requests


async def _run_when_due(job: Job, run: Callable[[Job], Awaitable[OpenRequest]], start: float) -> OpenRequest:
    assert job.due_seconds is not None, "all jobs of a round have a due time, or none"
    await asyncio.sleep(start + job.due_seconds - time.monotonic())
    return await run(job)


async def _run_in_turn(
    waiting: Iterator[Job], run: Callable[[Job], Awaitable[OpenRequest]], requests: list[OpenRequest]
) -> None:
    for job in waiting:
        requests.append(await run(job))
