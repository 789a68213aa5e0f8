"""One rank's place in its worker group.

One rank until tensor parallelism exists. Knows nothing about how ranks talk to each other.
"""

from dataclasses import dataclass

from worker_svc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TpGroup:
    """Place and width of tensor parallelism, and what this rank computes on."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    """As torch names it: "cpu" or "cuda:0"."""


def make_tp_group(device: str, *, rank: int, size: int, local_rank: int) -> TpGroup:
    """Place a rank that torchrun started.

    Args:
        device: "cpu" or "cuda".
        rank: The rank in the group, from RANK.
        size: Ranks of the group, from WORLD_SIZE.
        local_rank: The rank on this machine, from LOCAL_RANK: its GPU.

    Raises:
        ConfigError: for more than one rank.
    """
    if size != 1:
        raise ConfigError(
            f"WORLD_SIZE is {size}, but must be 1: tensor parallelism does not exist yet. "
            "Start one process, with torchrun --nproc-per-node 1"
        )
    return TpGroup(rank=rank, size=size, device=f"cuda:{local_rank}" if device == "cuda" else device)
