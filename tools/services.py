"""Run the two services as processes of their own, for benchmarks and end-to-end tests.

Reads the line with which each says where it listens, keeps all it prints, and stops it as an operator
would. Knows nothing about requests.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread

from stepwire_cli.ready import wait_until_ready

START_LIMIT_SECONDS = 120.0
STOP_LIMIT_SECONDS = 60.0


class ServiceError(Exception):
    """A service did not start, or did not stop: the message holds what it printed."""


@dataclass(slots=True, eq=False)
class Service:
    """One running service."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    """All it printed so far, standard output and error together."""
    _changed: Condition = field(default_factory=Condition)
    _has_ended: bool = False

    @classmethod
    def start(cls, module: str, *arguments: str) -> "Service":
        """Start ``python -m module arguments``."""
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        service = cls(process)
        Thread(target=service._read, daemon=True).start()
        return service

    def address(self, limit_seconds: float = START_LIMIT_SECONDS) -> str:
        """Wait for "… listening on HOST:PORT" and return HOST:PORT.

        Raises:
            ServiceError: if the service ends first, or takes longer than the limit.
        """
        line = self.wait_for(" listening on ", limit_seconds)
        return line.rsplit(" ", 1)[1].strip()

    def wait_for(self, text: str, limit_seconds: float = START_LIMIT_SECONDS) -> str:
        """Wait for a line that contains ``text`` and return the first such line.

        Raises:
            ServiceError: if the service ends first, or takes longer than the limit.
        """

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._has_ended, limit_seconds)
            line = found()
        if line is None:
            raise ServiceError(f"no line with {text!r} came, but:\n{''.join(self.lines)}")
        return line

    def stop(self) -> int:
        """Ask the service to end, as an operator would, and return its exit code.

        Raises:
            ServiceError: if it does not end within the limit; it is killed then.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServiceError(f"it did not stop, and printed:\n{''.join(self.lines)}") from None

    def kill(self) -> None:
        """End the service as a crash would."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Service]:
    """Run one service; stop it in the end, whatever happens."""
    service = Service.start(module, *arguments)
    try:
        yield service
        if service.process.poll() is None:
            exit_code = service.stop()
            if exit_code:
                raise ServiceError(f"it ended with {exit_code}, and printed:\n{''.join(service.lines)}")
    finally:
        if service.process.poll() is None:
            service.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Both services, and where clients reach them."""

    worker: Service
    scheduler: Service
    address: str


@contextmanager
def running_services(
    model: Path, *, worker_flags: Sequence[str] = (), scheduler_flags: Sequence[str] = ()
) -> Iterator[Services]:
    """Run a worker and a scheduler for one model folder on free ports."""
    common = ("--model", str(model), "--port", "0")
    with running("worker_svc", *common, *worker_flags) as worker:
        worker_address = worker.address()
        with running("scheduler_svc", *common, "--worker", worker_address, *scheduler_flags) as scheduler:
            address = scheduler.address()
            # Until then it refuses requests: it does not know what it could promise.
            asyncio.run(asyncio.wait_for(wait_until_ready(address), START_LIMIT_SECONDS))
            yield Services(worker=worker, scheduler=scheduler, address=address)
