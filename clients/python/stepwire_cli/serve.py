"""``stepwire serve``: both services on this machine, started and stopped together.

Knows the order of things; child_group.py keeps them running, service_commands.py knows what to run.
"""

import asyncio
import errno
import signal
import socket
import sys
from functools import partial
from typing import Any

import typer
from stepwire_client import AsyncStepwireClient

from stepwire_cli.child_group import ChildGroup
from stepwire_cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, fail, one_line_errors
from stepwire_cli.hanging import Patience
from stepwire_cli.ready import wait_until_ready
from stepwire_cli.serve_flags import ServeFlags
from stepwire_cli.service_commands import SCHEDULER, WORKER, WORKER_HOST, scheduler_command, worker_command
from stepwire_cli.telling import tell

MAX_PORT = 65535
WORKER_GRACE_SECONDS = 10.0
LAUNCHER_GRACE_SECONDS = 30.0
"""What torchrun gets beyond that, when its ranks have ended."""
AFTER_DRAIN_SECONDS = 5.0
"""What the scheduler gets beyond the drain, to end its own processes."""


def run_serve(flags: ServeFlags) -> None:
    """Run the command."""
    check_port(flags.host, flags.port)
    if flags.metrics_port is not None and flags.metrics_port > 0:
        check_port(flags.host, flags.metrics_port, flag="--metrics-port")
    check_port(WORKER_HOST, flags.worker_port, flag="--worker-port")
    with one_line_errors(f"{flags.host}:{flags.port}"):
        exit_code = asyncio.run(_serve(flags))
    raise typer.Exit(exit_code)


def check_port(host: str, port: int, *, flag: str = "--port") -> None:
    """End the program where the address is taken or not ours: the scheduler would only find out later.

    It starts when the worker has loaded the model, which may take minutes.
    """
    if not 0 <= port <= MAX_PORT:  # else getaddrinfo would take the rest of a division by 65,536
        fail(f"{flag} is {port}, but must be in [0, {MAX_PORT}]", EXIT_REFUSED)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        limit = f"be an address that can be listened on ({error.strerror})"
        is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        told = f"--host is '{host}'" if is_host else f"{flag} is '{host}:{port}'"
        fail(f"{told}, but must {limit}", EXIT_REFUSED)


async def _serve(flags: ServeFlags) -> int:
    """Serve until a signal, or until a service can not be kept running; return the exit code."""
    stop, hurry = _stop_events()
    children = ChildGroup()
    starting = asyncio.create_task(_start_services(children, flags))
    stopping = asyncio.create_task(stop.wait())
    dying = asyncio.create_task(children.keep_running())
    try:
        await asyncio.wait({starting, stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done() and not dying.done():
            tell(f"Stepwire serves {starting.result()}")
            await asyncio.wait({stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
        over = None if stopping.done() else dying.result()
        if over is not None:
            tell(f"error: {over.reason}; all is stopped", is_error=True)
        elif not hurry.is_set():
            tell(f"stopping: requests get up to {flags.drain_seconds:g} s to end, Ctrl-C again ends them now")
    finally:
        await _cancel(starting, stopping, dying)
        killed = await children.stop(hurry)
    if hurry.is_set():
        tell("all is ended at once, as asked")
        return EXIT_INTERRUPTED
    for child in killed:
        tell(f"error: the {child.name} did not stop in time and was killed", is_error=True)
    if over is not None:
        return over.exit_code
    return EXIT_FAILED if killed else 0


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel what still runs; how it ends is of no interest, because the verdict is given."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _stop_events() -> tuple[asyncio.Event, asyncio.Event]:
    """Return two events: the first signal to stop sets one, the next one the other."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def take_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, take_signal)
    return stop, hurry


async def _check_scheduler(flags: ServeFlags) -> None:
    """End where the scheduler refuses its options, which it tells: it starts when the worker has loaded.

    Raises:
        typer.Exit: with its exit code.
    """
    command = scheduler_command(flags, worker_address="127.0.0.1:1", python=sys.executable)
    process = await asyncio.create_subprocess_exec(
        *command, "--check-only", stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        exit_code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if exit_code:
        raise typer.Exit(exit_code)


async def _start_services(children: ChildGroup, flags: ServeFlags) -> str:
    """Start the worker, then the scheduler; return what is served where, once it is ready."""
    await _check_scheduler(flags)
    is_launcher = flags.tensor_parallel_size > 1
    worker = await children.start(
        WORKER,
        partial(worker_command, flags, python=sys.executable),
        grace_seconds=WORKER_GRACE_SECONDS + is_launcher * LAUNCHER_GRACE_SECONDS,
        is_launcher=is_launcher,
        patience=Patience(),
    )
    worker_address = await worker.address
    scheduler = await children.start(
        SCHEDULER,
        partial(scheduler_command, flags, worker_address=worker_address, python=sys.executable),
        grace_seconds=flags.drain_seconds + AFTER_DRAIN_SECONDS,
    )
    address = await scheduler.address
    if flags.tls_cert is not None:
        # Which names the certificate has, and whether it is to be trusted, is for clients to know.
        return f"on {address}, with TLS"
    reachable = _reachable(address)
    await wait_until_ready(reachable)
    if flags.tenants_file is not None:
        return f"on {address}, for those who have a token"
    async with AsyncStepwireClient(reachable) as client:
        model_name = (await client.model_info()).model_name
    return f"{model_name} on {address}"


def _reachable(address: str) -> str:
    """Return where a listener on every address of the machine is reached from the machine itself."""
    host, _, port = address.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"
