"""Runs the scheduler service: one engine process and N front end processes on one port.

Starts them, says when all listen, starts again what crashes, and passes a stop on (front ends drain
first, then the engine ends). A process that cannot start at all ends everything, with one clear line.
Knows nothing about requests or models.
"""

import errno
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from scheduler_svc.child_process import ChildProcess, run_engine_child, run_frontend_child
from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.exposure import exposure_lines
from scheduler_svc.kept_child import KeptChild
from scheduler_svc.scraped import serve_metrics

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ENGINE_STOP_SECONDS = 5.0
_DRAIN_MARGIN_SECONDS = 5.0
"""A front end may need this long over its drain time to close its streams."""


def supervise(config: SchedulerConfig, say: Callable[[str], None]) -> int:
    """Run the service until a stop signal comes or a process cannot start.

    Args:
        config: The service's options; ``model`` names an existing folder.
        say: Prints one line.

    Returns:
        The exit code: 0 after a stop signal, 1 when a process could not start.

    Raises:
        ConfigError: if a port cannot be had.
    """
    with ExitStack() as stack:
        # Before there are folders: a signal that ended the process there would leave them behind.
        wakeup = stack.enter_context(_stop_signals_as_bytes())
        reserved = stack.enter_context(reserve_port(config.host, config.port))
        config = replace(config, port=reserved.getsockname()[1])
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stepwire-"))
        metrics_folder = stack.enter_context(serve_metrics(config, say))
        supervisor = Supervisor(
            config,
            socket_path=str(Path(folder) / "engine.sock"),
            metrics_folder=metrics_folder,
            wakeup=wakeup,
        )
        return supervisor.run(say)


def reserve_port(host: str, port: int) -> socket.socket:
    """Bind, without listening, the address that all front ends will share; port 0 picks a free one.

    Raises:
        ConfigError: if the address is taken or not ours. Asked once without SO_REUSEPORT, because
            with it a second scheduler would silently take half of the first one's clients.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        reserved = socket.socket(family, kind, protocol)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except OSError as error:
        limit = f"be an address that can be listened on ({error.strerror})"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError.of("host", host, limit) from error
        raise ConfigError.of("port", f"{host}:{port}", limit) from error
    return reserved


class Supervisor:
    """The processes of one scheduler service, from start to end."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        socket_path: str,
        metrics_folder: Path | None,
        wakeup: socket.socket,
    ) -> None:
        self._config = config
        places: dict[str, Any] = {"socket_path": socket_path, "metrics_folder": metrics_folder}
        self._wakeup = wakeup
        now_seconds = time.monotonic()
        self._engine = KeptChild(
            partial(ChildProcess.start, run_engine_child, config, name="engine", **places),
            now_seconds=now_seconds,
        )
        self._frontends = tuple(
            KeptChild(
                partial(
                    ChildProcess.start,
                    run_frontend_child,
                    config,
                    name=f"front end {index}",
                    frontend_index=index,
                    **places,
                ),
                now_seconds=now_seconds,
            )
            for index in range(config.frontends)
        )
        self._has_listened = False

    def run(self, say: Callable[[str], None]) -> int:
        """Wait for all to listen, then for a stop; end everything; return the exit code."""
        try:
            return self._watch(say)
        finally:
            _stop(
                [place.child for place in self._frontends],
                limit_seconds=self._config.drain_seconds + _DRAIN_MARGIN_SECONDS,
                wakeup=self._wakeup,
            )
            _stop([self._engine.child], limit_seconds=_ENGINE_STOP_SECONDS, wakeup=self._wakeup)

    def _watch(self, say: Callable[[str], None]) -> int:
        places = (self._engine, *self._frontends)
        while True:
            self._wait_for_news(places)
            if _was_signalled(self._wakeup):
                say("scheduler stopping")
                return 0
            for place in places:
                has_died = place.has_died()
                place.child.take_messages()  # after the question, so that nothing it told is missed
                if has_died:
                    if self._is_fatal(place):
                        say(f"scheduler error: {place.child.obituary()}")
                        return 1
                    delay_seconds = place.bury(time.monotonic())
                    say(f"{place.child.obituary()}; starting it again in {delay_seconds:.0f} s")
                place.start_if_due(time.monotonic())
            if not self._has_listened and all(place.child.is_listening for place in places):
                self._has_listened = True
                for line in exposure_lines(self._config):
                    say(line)
                say(f"scheduler listening on {self._config.host}:{self._config.port}")

    def _wait_for_news(self, places: Iterable[KeptChild]) -> None:
        """Wait until a child tells something or dies, a signal comes or a restart is due."""
        handles: list[Any] = [self._wakeup]
        restarts_seconds = []
        for place in places:
            if place.restart_seconds is None:
                handles += place.child.handles()
            else:
                restarts_seconds.append(place.restart_seconds)
        timeout = max(0.0, min(restarts_seconds) - time.monotonic()) if restarts_seconds else None
        wait(handles, timeout)

    def _is_fatal(self, place: KeptChild) -> bool:
        """Whether a death ends the service: at its start, or where the engine itself says why it cannot run.

        Any other is a crash of one process: it is started again while the others go on.
        """
        return not self._has_listened or (place is self._engine and bool(place.child.failure))


def _stop(children: Iterable[ChildProcess], *, limit_seconds: float, wakeup: socket.socket) -> None:
    """Ask ``children`` to end, wait for them, and kill those left at the limit or at another signal."""
    children = list(children)
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + limit_seconds
    while running := [child.process.sentinel for child in children if not child.is_dead()]:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0 or not wait([wakeup, *running], left_seconds) or _was_signalled(wakeup):
            break
    for child in children:
        if not child.is_dead():
            child.process.kill()
        child.process.join()


@contextmanager
def _stop_signals_as_bytes() -> Iterator[socket.socket]:
    """Turn stop signals into bytes on a socket, so that one ``wait`` sees them with everything else."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    previous_handlers = {number: signal.signal(number, _leave_to_wakeup) for number in _STOP_SIGNALS}
    previous_fd = signal.set_wakeup_fd(writer.fileno())
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def _leave_to_wakeup(_signal_number: int, _frame: FrameType | None) -> None:
    """Replace the default action; the byte on the wakeup socket is what tells the supervisor."""


def _was_signalled(wakeup: socket.socket) -> bool:
    try:
        return bool(wakeup.recv(64))
    except BlockingIOError:
        return False
