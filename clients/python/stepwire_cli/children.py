"""Child processes: each line they print gets their name in front, and they are stopped in order.

Knows nothing about what they serve. A child gets a session of its own, so that Ctrl-C reaches this
process only and the order of the stop is ours.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable

import typer

_COLORS = (typer.colors.CYAN, typer.colors.MAGENTA)
_NAME_WIDTH = 10
_LAST_LINES_SECONDS = 2.0
"""How long the lines of an ended child are waited for: a process it left behind may hold its pipes."""


class Child:
    """One running child process."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, *, color: str, grace_seconds: float
    ) -> None:
        self.name = name
        self.process = process
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """HOST:PORT, once the child has told that it listens."""
        self._prefix = typer.style(f"{name:{_NAME_WIDTH}}|", fg=color)
        self._grace_seconds = grace_seconds
        self._listening = re.compile(rf"{re.escape(name)} listening on (\S+)")
        self._relays = [
            asyncio.create_task(self._relay(reader, tell))
            for reader, tell in ((process.stdout, self._tell_stdout), (process.stderr, self._tell_stderr))
            if reader is not None
        ]

    def describe_end(self) -> str:
        """Say how the child ended."""
        code = self.process.returncode
        assert code is not None, "only an ended child has an end"
        if code < 0:
            return f"the {self.name} was ended by {signal.Signals(-code).name}"
        return f"the {self.name} ended with exit code {code}"

    async def wait(self) -> None:
        """Wait until the child has ended and its last lines are told."""
        await self.process.wait()
        await asyncio.wait(self._relays, timeout=_LAST_LINES_SECONDS)

    async def stop(self, hurry: asyncio.Event) -> bool:
        """Ask the child to end, and kill it when ``hurry`` is set or its time is over.

        Returns:
            Whether it ended by itself.
        """
        ending, hurrying = asyncio.create_task(self.wait()), asyncio.create_task(hurry.wait())
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                self.process.terminate()
            await asyncio.wait(
                {ending, hurrying}, timeout=self._grace_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        is_ended = self.process.returncode is not None
        with contextlib.suppress(ProcessLookupError):  # it left no process of its session behind
            os.killpg(self.process.pid, signal.SIGKILL)
        await ending
        hurrying.cancel()
        return is_ended

    async def _relay(self, reader: asyncio.StreamReader, tell: Callable[[str], None]) -> None:
        pending = b""
        while chunk := await reader.read(65536):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                tell(line.decode(errors="replace"))
        if pending:
            tell(pending.decode(errors="replace"))

    def _tell_stdout(self, line: str) -> None:
        match = self._listening.search(line)
        if match is not None and not self.address.done():
            self.address.set_result(match.group(1))
        self._tell(line, is_error=False)

    def _tell_stderr(self, line: str) -> None:
        self._tell(line, is_error=True)

    def _tell(self, line: str, *, is_error: bool) -> None:
        typer.echo(f"{self._prefix} {line}", err=is_error)


class ChildGroup:
    """Children that live and end together."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._deaths: asyncio.Queue[Child] = asyncio.Queue()
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self, name: str, command: tuple[str, ...], *, grace_seconds: float) -> Child:
        """Start a child; on a terminal its stderr stays the terminal, for progress bars."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if sys.stderr.isatty() else asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        color = _COLORS[len(self._children) % len(_COLORS)]
        child = Child(name, process, color=color, grace_seconds=grace_seconds)
        self._children.append(child)
        self._watchers.append(asyncio.create_task(self._watch(child)))
        return child

    async def _watch(self, child: Child) -> None:
        await child.wait()
        self._deaths.put_nowait(child)

    async def first_death(self) -> Child:
        """Wait until a child has ended."""
        return await self._deaths.get()

    async def stop(self, hurry: asyncio.Event) -> list[Child]:
        """Stop all children, the latest first, each one after the one before has ended.

        Returns:
            Those that had to be killed.
        """
        killed = [child for child in reversed(self._children) if not await child.stop(hurry)]
        await asyncio.gather(*self._watchers)
        return killed
