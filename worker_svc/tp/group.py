"""One rank's place in its worker group, as torchrun tells it.

Knows nothing about how ranks talk to each other; join.py does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from worker_svc.errors import ConfigError

LAUNCHER_PID = "STEPWIRE_LAUNCHER_PID"
"""Where launch tells its process id: a rank's parent is another one once the launcher has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpGroup:
    """Place and width of tensor parallelism, and what this rank computes on."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    """As torch names it: "cpu" or "cuda:0"."""
    local_rank: int = 0
    """The rank among those of its host."""
    local_size: int = 1
    """Ranks on its host."""
    host_index: int = 0
    """Which of the group's hosts this is; rank 0 is on the first."""
    leader_host: str = "127.0.0.1"
    """Where the other hosts reach the first."""
    launcher_pid: int | None = None
    """torchrun's process, which starts ranks and ends with them."""
    has_launcher_store: bool = False
    """Whether what the ranks meet in is torchrun's; else it is rank 0's."""

    @property
    def is_leader(self) -> bool:
        """Whether this rank ends the step stream and leads all others."""
        return self.rank == 0

    @property
    def process_name(self) -> str:
        """What the log calls this process."""
        return "worker" if self.size == 1 else f"rank {self.rank}"

    @property
    def is_leader_host(self) -> bool:
        """Whether rank 0 is on this host, too."""
        return self.host_index == 0


def make_tp_group(device: str, environment: Mapping[str, str], *, parent_pid: int | None = None) -> TpGroup:
    """Place a rank.

    Args:
        device: "cpu" or "cuda".
        environment: As torchrun sets it; one rank where it says nothing.
        parent_pid: Process that started this one.

    Raises:
        ConfigError: if a variable is no number, or they do not fit together.
    """
    size = _number(environment, "WORLD_SIZE", 1)
    local_rank = _number(environment, "LOCAL_RANK", 0)
    torch_device = f"cuda:{local_rank}" if device == "cuda" else device
    if size <= 1:
        return TpGroup(device=torch_device)
    group = TpGroup(
        rank=_number(environment, "RANK", 0),
        size=size,
        device=torch_device,
        local_rank=local_rank,
        local_size=_number(environment, "LOCAL_WORLD_SIZE", size),
        host_index=_number(environment, "GROUP_RANK", 0),
        leader_host=environment.get("MASTER_ADDR", "127.0.0.1"),
        launcher_pid=_launcher_pid(environment, parent_pid),
        has_launcher_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    for name, value, limit in (
        ("RANK", group.rank, size),
        ("LOCAL_WORLD_SIZE", group.local_size, size + 1),
        ("LOCAL_RANK", local_rank, group.local_size),
    ):
        if value >= limit:
            raise ConfigError(f"{name} is {value}, but must be below {limit}, with {size} ranks in the group")
    return group


def _launcher_pid(environment: Mapping[str, str], parent_pid: int | None) -> int | None:
    """Return torchrun's process: it says so itself where launch started it; None without it."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    return _number(environment, LAUNCHER_PID, 0) or parent_pid


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, str(default))
    if not value.isdecimal():
        raise ConfigError(f"{name} is {value!r}, but must be a number, as torchrun sets it")
    return int(value)
