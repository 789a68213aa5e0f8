"""One child process of the supervisor: what it runs, what it tells, how it died.

A child tells "listening" once, or why it cannot start; it ends when its parent dies, and leaves
Ctrl-C to the supervisor. Knows nothing about what the engine and the front ends do.
"""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.errors import StepwireError
from telemetry.log_lines import set_up_logging

_LISTENING = "listening"


def run_engine_child(
    connection: Connection, config: SchedulerConfig, *, socket_path: str, metrics_folder: Path | None
) -> None:
    """Run the engine in this process, until it is stopped."""
    # Imported in the child only: the supervisor itself needs no grpc, which costs 0.2 s and 50 MB.
    from scheduler_svc.engine.server import run_engine  # noqa: PLC0415

    on_listening = _prepare_child(connection, config, (Path(socket_path).parent, metrics_folder))
    with _failure_told(connection):
        run_engine(config, socket_path=socket_path, metrics_folder=metrics_folder, on_listening=on_listening)


def run_frontend_child(
    connection: Connection,
    config: SchedulerConfig,
    *,
    socket_path: str,
    metrics_folder: Path | None,
    frontend_index: int,
) -> None:
    """Run one front end in this process, until it is stopped."""
    from scheduler_svc.frontend.server import run_frontend  # noqa: PLC0415

    on_listening = _prepare_child(connection, config, (Path(socket_path).parent, metrics_folder))
    with _failure_told(connection):
        run_frontend(
            config,
            frontend_index=frontend_index,
            socket_path=socket_path,
            metrics_folder=metrics_folder,
            on_listening=on_listening,
        )


def _prepare_child(
    connection: Connection, config: SchedulerConfig, folders: tuple[Path | None, ...]
) -> Callable[[], None]:
    """Set up what every child needs; return what it calls when it listens."""
    set_up_logging(config.logging_level, config.log_format)
    # A terminal sends Ctrl-C to the whole process group; the supervisor passes it on in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=folders, name="end-with-parent", daemon=True).start()
    return lambda: connection.send(_LISTENING)


def _end_with_parent(*folders: Path | None) -> None:
    """Stop this process when its parent is gone, however that died, and leave none of its folders."""
    parent = parent_process()
    assert parent is not None, "runs in a child only"
    parent.join()
    for folder in folders:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # its other children do the same
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _failure_told(connection: Connection) -> Iterator[None]:
    """Send the message of an expected error to the supervisor and end the process with 1."""
    try:
        yield
    except (StepwireError, ConfigError) as error:
        connection.send(str(error))
        raise SystemExit(1) from error


@dataclass(slots=True, kw_only=True, eq=False)
class ChildProcess:
    """A started child as its supervisor sees it."""

    name: str
    process: SpawnProcess
    connection: Connection
    is_listening: bool = False
    failure: str = ""
    """What the child told of its own failure."""
    is_silent: bool = False
    """The child closed its end of the connection."""

    @classmethod
    def start(
        cls, target: Callable[..., None], config: SchedulerConfig, *, name: str, **arguments: Any
    ) -> Self:
        """Start ``target(connection, config, **arguments)`` as a process of its own."""
        context = get_context("spawn")
        connection, childs_end = context.Pipe(duplex=False)
        process = context.Process(
            target=target, args=(childs_end, config), kwargs=arguments, name=name, daemon=True
        )
        process.start()
        childs_end.close()
        return cls(name=name, process=process, connection=connection)

    def handles(self) -> list[Any]:
        """What to wait on for news of this child."""
        return [self.process.sentinel] if self.is_silent else [self.process.sentinel, self.connection]

    def take_messages(self) -> None:
        """Take in what the child told."""
        try:
            while not self.is_silent and self.connection.poll():
                message = self.connection.recv()
                if message == _LISTENING:
                    self.is_listening = True
                else:
                    self.failure = message
        except EOFError:
            self.is_silent = True

    def is_dead(self) -> bool:
        """Whether the process ended."""
        return self.process.exitcode is not None

    def obituary(self) -> str:
        """Say in one line how the child died."""
        when = "ended" if self.is_listening else "failed to start"
        why = self.failure or f"exit code {self.process.exitcode}, see its log above"
        return f"{self.name} {when}: {why}"
