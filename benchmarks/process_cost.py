"""What processes cost, read from /proc: CPU seconds and resident memory.

Their own CPU time does not depend on what else the machine does. Knows nothing about what they are.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCost:
    """One process's cost until now."""

    cpu_seconds: float
    resident_mib: float


def read_cost(pid: int) -> ProcessCost:
    """Read what a process cost until now, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return ProcessCost(
        cpu_seconds=(user_ticks + system_ticks) / _TICKS_PER_SECOND,
        resident_mib=int(status["VmRSS"].split()[0]) / 1024,
    )


def scheduler_processes(supervisor_pid: int) -> dict[str, int]:
    """List a scheduler's processes by name: the supervisor starts the engine first, then front ends."""
    children = Path(f"/proc/{supervisor_pid}/task/{supervisor_pid}/children").read_text().split()
    pids = [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    names = ["engine", *(f"front end {index}" for index in range(len(pids) - 1))]
    return dict(zip(names, pids, strict=True))
