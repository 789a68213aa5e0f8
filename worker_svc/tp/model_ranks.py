"""Makes the ranks that a model sees out of a rank's place in its group.

Who starts a rank joins the default process group, then loads the worker, which makes its ranks here. Knows
nothing about models or steps.
"""

import logging
from typing import TYPE_CHECKING

import torch

from model.ranks import OneRank, Ranks
from worker_svc.tp.communicator import DistributedRanks
from worker_svc.tp.group import TpGroup

if TYPE_CHECKING:
    from worker_svc.tp.symmetric_ranks import SymmetricRanks

logger = logging.getLogger(__name__)


def make_ranks(group: TpGroup) -> Ranks:
    """Return a group's ranks, on all of them at once: those of one host sum small messages by themselves."""
    if group.size == 1:
        return OneRank()
    ranks, device = DistributedRanks(), torch.device(group.device)
    assert ranks.size == group.size, "the process group is another"
    if device.type != "cuda" or group.local_size != group.size:
        return ranks
    symmetric = _try_symmetric(device)
    # One that cannot would wait for the others by other means: all do the same.
    can_all = ranks.all_gather(torch.tensor([symmetric is not None], device=device).int()).all()
    return symmetric if symmetric is not None and can_all else ranks


def _try_symmetric(device: torch.device) -> "SymmetricRanks | None":
    # Only here: CPUs and single GPUs need none of it.
    from worker_svc.tp.symmetric_ranks import SymmetricRanks  # noqa: PLC0415

    try:
        return SymmetricRanks(device)
    except RuntimeError as error:
        logger.warning("ranks do not read each other's memory, so NCCL sums all messages: %s", error)
        return None
