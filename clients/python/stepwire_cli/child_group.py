"""Children that live and end together: one that dies is started again where it listened, within limits.

One that hangs is killed first, where it is watched for that. Knows nothing about what they serve, nor
about how a process is started or ended (children.py does).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import typer

from stepwire_cli.children import Child
from stepwire_cli.exits import EXIT_FAILED, EXIT_REFUSED
from stepwire_cli.hanging import Patience, wait_until_hung
from stepwire_cli.restarts import MAX_RESTARTS, RestartBudget
from stepwire_cli.telling import tell

_COLORS = (typer.colors.CYAN, typer.colors.MAGENTA)

MakeCommand = Callable[[int | None], tuple[str, ...]]
"""Gives a command line that listens on this port, on the one that the user asked for where None."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Place:
    """A child that must run, and how it is started again."""

    child: Child
    make_command: MakeCommand
    options: dict[str, Any]
    """Of the child, for the next one in its place."""
    patience: Patience | None
    """With its answers to health probes; None: it is not probed."""
    port: int | None = None
    """Where it listened, once it has."""
    budget: RestartBudget = field(default_factory=RestartBudget)


class Over(NamedTuple):
    """Why children run no longer."""

    reason: str
    exit_code: int
    """Of the program that needs them: a refusal where one refused what it was given to start with."""


class ChildGroup:
    """All children, in the order of their start."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._deaths: asyncio.Queue[Child] = asyncio.Queue()
        self._watchers: list[asyncio.Task[None]] = []
        self._restarting: asyncio.Task[None] | None = None
        self._hopeless = asyncio.Event()
        """Set while the first child, which all others need, does not run."""

    async def start(
        self,
        name: str,
        make_command: MakeCommand,
        *,
        grace_seconds: float,
        is_launcher: bool = False,
        patience: Patience | None = None,
    ) -> Child:
        """Start a child, see Child; with ``patience`` it is killed and started again when it hangs."""
        color = _COLORS[len(self._places) % len(_COLORS)]
        options: dict[str, Any] = {"color": color, "grace_seconds": grace_seconds, "is_launcher": is_launcher}
        child = await Child.start(name, make_command(None), **options)
        self._places[name] = _Place(
            child=child, make_command=make_command, options=options, patience=patience
        )
        self._watch(child)
        return child

    async def keep_running(self) -> Over:
        """Start again what dies; return when that is over: a first start failed, or restarts do not help."""
        while True:
            child = await self._deaths.get()
            place = self._places[child.name]
            if child.has_listened:
                place.port = int(child.address.result().rpartition(":")[2])
            if place.port is None:
                is_refused = child.process.returncode == EXIT_REFUSED
                return Over(child.describe_end(), EXIT_REFUSED if is_refused else EXIT_FAILED)
            number = place.budget.take(time.monotonic())
            if number is None:
                reason = f"{child.describe_end()}, after {MAX_RESTARTS} restarts within a minute"
                return Over(reason, EXIT_FAILED)
            again = f"starting it again (restart {number} of {MAX_RESTARTS} within a minute)"
            tell(f"{child.describe_end()}; {again}", is_error=True)
            # A stop must not lose sight of a process that starts just now.
            self._restarting = asyncio.create_task(self._restart(place))
            await asyncio.shield(self._restarting)

    async def stop(self, hurry: asyncio.Event) -> list[Child]:
        """Stop all children, the latest first, each one after the one before has ended.

        Returns:
            Those that had to be killed.
        """
        if self._restarting is not None:
            await self._restarting
        children = [place.child for place in self._places.values()]
        killed = [child for child in reversed(children) if not await child.stop(hurry, self._hopeless)]
        await asyncio.gather(*self._watchers)
        return killed

    async def _restart(self, place: _Place) -> None:
        command = place.make_command(place.port)
        place.child = await Child.start(place.child.name, command, **place.options)
        self._watch(place.child)
        self._hopeless.clear()

    def _watch(self, child: Child) -> None:
        self._watchers.append(asyncio.create_task(self._wait_for_death(child)))

    async def _wait_for_death(self, child: Child) -> None:
        patience = self._places[child.name].patience
        hanging = None if patience is None else asyncio.create_task(_kill_when_hung(child, patience))
        await child.process.wait()
        if hanging is not None:
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)
        # At once, not after its last lines: who waits for it in vain is to know.
        if child is next(iter(self._places.values())).child:
            self._hopeless.set()
        await child.wait()
        # What it left behind may hold its port.
        child.kill_session()
        self._deaths.put_nowait(child)


async def _kill_when_hung(child: Child, patience: Patience) -> None:
    # The future itself is not awaited: cancelling that would cancel it for all who wait.
    await asyncio.wait([child.address])
    await wait_until_hung(child.address.result(), patience)
    tell(f"the {child.name} has not answered for {patience.seconds:g} s: it is killed", is_error=True)
    child.kill_session()
