"""Finds the processes of a running scheduler service by what they listen on. Reads /proc, so Linux only.

Knows nothing about what is done to them.
"""

from dataclasses import dataclass
from pathlib import Path

_LISTENS = "0A"
_ACCEPTS_CONNECTIONS = 0x10000
_ENGINE_SOCKET = "engine.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerProcesses:
    """Process ids of the parts that listen now; a part that is starting is not among them."""

    engines: tuple[int, ...]
    frontends: tuple[int, ...]


def find_processes(supervisor_pid: int, address: str) -> SchedulerProcesses:
    """Find the parts of the scheduler service that clients reach at ``address``."""
    port = int(address.rsplit(":", 1)[1])
    engines, frontends = [], []
    for pid in _children(supervisor_pid):
        try:
            sockets = _sockets(pid)
            if sockets & _tcp_listeners(pid, port):
                frontends.append(pid)
            elif sockets & _engine_listeners(pid):
                engines.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended just now
    return SchedulerProcesses(engines=tuple(engines), frontends=tuple(frontends))


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _sockets(pid: int) -> set[str]:
    """Return the inodes of a process's open sockets."""
    names = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(link.readlink().name)
        except FileNotFoundError:
            continue  # it was closed just now
    return {name.removeprefix("socket:[").removesuffix("]") for name in names if name.startswith("socket:[")}


def _tcp_listeners(pid: int, port: int) -> set[str]:
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[9] for row in rows if row[3] == _LISTENS and int(row[1].rsplit(":", 1)[1], 16) == port}


def _engine_listeners(pid: int) -> set[str]:
    rows = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    return {
        row[6] for row in rows if row[-1].endswith(_ENGINE_SOCKET) and int(row[3], 16) & _ACCEPTS_CONNECTIONS
    }
