"""Child processes: lines they print get their name in front, but for JSON, and they are stopped in order.

A child gets a session of its own, so that Ctrl-C reaches this process only and the order of the stop is
ours. Knows nothing about what they serve (child_group.py keeps them running and stops them in order).
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from stepwire_cli.bound_command import bound
from stepwire_cli.telling import tell

_NAME_WIDTH = 10
_LAST_LINES_SECONDS = 2.0
"""How long the lines of an ended child are waited for: a process it left behind may hold its pipes."""
_SECOND_SIGNAL_SECONDS = 1.0
"""When a child whose drain cannot end is asked a second time, which ends it now."""
_HURRY_SECONDS = 3.0
"""How long a child that was asked a second time, because nobody wants to wait, may take to clean up."""


class Child:
    """One running child process."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        *,
        color: str,
        grace_seconds: float,
        is_launcher: bool = False,
    ) -> None:
        """Take over a process that was started.

        Args:
            name: What people are told it is.
            process: Its output is relayed.
            color: Of its name.
            grace_seconds: How long it may take to end.
            is_launcher: Whether it ends well once its own children have: torchrun does.
        """
        self.name = name
        self._is_launcher = is_launcher
        self.process = process
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """HOST:PORT, once the child has told that it listens."""
        self._prefix = typer.style(f"{name:{_NAME_WIDTH}}|", fg=color)
        self._grace_seconds = grace_seconds
        self._listening = re.compile(rf"{re.escape(name)} listening on (\S+)")
        self._relays = [
            asyncio.create_task(self._relay(reader, take))
            for reader, take in ((process.stdout, self._take_stdout), (process.stderr, self._take_stderr))
            if reader is not None
        ]

    def describe_end(self) -> str:
        """Say how the child ended."""
        code = self.process.returncode
        assert code is not None, "only an ended child has an end"
        if code < 0:
            return f"the {self.name} was ended by {signal.Signals(-code).name}"
        return f"the {self.name} ended with exit code {code}"

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process.returncode is None

    @property
    def has_listened(self) -> bool:
        """Whether the child told where it listens."""
        return self.address.done()

    @classmethod
    async def start(
        cls,
        name: str,
        command: tuple[str, ...],
        *,
        color: str,
        grace_seconds: float,
        is_launcher: bool = False,
    ) -> "Child":
        """Start a child, which ends with this process.

        On a terminal its stderr stays the terminal, for progress bars.
        """
        process = await asyncio.create_subprocess_exec(
            *bound(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if sys.stderr.isatty() else asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(name, process, color=color, grace_seconds=grace_seconds, is_launcher=is_launcher)

    async def wait(self) -> None:
        """Wait until the child has ended and its last lines are told."""
        await self.process.wait()
        await asyncio.wait(self._relays, timeout=_LAST_LINES_SECONDS)

    def kill_session(self) -> None:
        """Kill the child and whatever it has left behind."""
        with contextlib.suppress(ProcessLookupError):  # it left no process of its session behind
            os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self, hurry: asyncio.Event, hopeless: asyncio.Event) -> bool:
        """Ask the child to end, and kill it when its time is over.

        Args:
            hurry: set when nobody wants to wait: it is asked again then, and has little time left.
            hopeless: set when what the child would wait for cannot come.

        Returns:
            Whether it ended by itself.
        """
        ending, hurrying = asyncio.create_task(self.wait()), asyncio.create_task(hurry.wait())
        losing_hope = asyncio.create_task(_later(hopeless, _SECOND_SIGNAL_SECONDS))
        deadline = time.monotonic() + self._grace_seconds
        if self.is_running:
            self._terminate()
            await _first_of({ending, hurrying, losing_hope}, deadline)
            if losing_hope.done() and self.is_running and not hurry.is_set():
                self._terminate()
                await _first_of({ending, hurrying}, deadline)
            if hurry.is_set() and self.is_running:
                self._terminate()
                await _first_of({ending}, time.monotonic() + _HURRY_SECONDS)
        is_ended = not self.is_running
        self.kill_session()
        await ending
        hurrying.cancel()
        losing_hope.cancel()
        return is_ended

    def _terminate(self) -> None:
        for pid in (self._is_launcher and _children_of(self.process.pid)) or [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(pid, signal.SIGTERM)

    async def _relay(self, reader: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        pending = b""
        while chunk := await reader.read(65536):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                take(line.decode(errors="replace"))
        if pending:
            take(pending.decode(errors="replace"))

    def _take_stdout(self, line: str) -> None:
        match = self._listening.search(line)
        if match is not None and not self.address.done():
            self.address.set_result(match.group(1))
        self._tell(line, is_error=False)

    def _take_stderr(self, line: str) -> None:
        self._tell(line, is_error=True)

    def _tell(self, line: str, *, is_error: bool) -> None:
        # A log line as JSON stays one, for what reads it; it says itself whose it is.
        is_json = is_error and line.startswith('{"')
        tell(line if is_json else f"{self._prefix} {line}", is_error=is_error)


def _children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children; none where it has none or is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def _later(event: asyncio.Event, seconds: float) -> None:
    await event.wait()
    await asyncio.sleep(seconds)


async def _first_of(tasks: set["asyncio.Task[Any]"], deadline: float) -> None:
    timeout = max(0.0, deadline - time.monotonic())
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
