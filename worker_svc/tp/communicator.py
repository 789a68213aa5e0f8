"""The ranks of a worker group as a model sees them, over torch.distributed: gloo on CPUs, NCCL on GPUs.

The default process group has been joined before. Knows nothing about models or steps.
"""

import torch
from torch import distributed

from model.ranks import SharedRows

# Its name until torch 2.12.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


class DistributedRanks:
    """Ranks over the default process group. gloo returns when done, NCCL once it is in the stream's order."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:  # noqa: ARG002
        """Replace x by its sum over all ranks; no kernel may start early behind it."""
        distributed.all_reduce(x)
        return False

    def is_short(self, x: torch.Tensor) -> bool:  # noqa: ARG002
        """No: add_sum takes a kernel more."""
        return False

    def add_sum(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        *,
        squares: torch.Tensor | None = None,  # noqa: ARG002
    ) -> bool:
        """Add x's sum over all ranks to the residual; no kernel may start early behind it."""
        distributed.all_reduce(x)
        residual.add_(x)
        return False

    def share_rows(self, num_rows: int, num_hidden: int, *, like: torch.Tensor) -> SharedRows | None:  # noqa: ARG002
        """Ranks do not reach each other's memory."""
        return None

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of every rank, in a new first dimension."""
        gathered = x.new_empty((self.size * len(x), *x.shape[1:]))
        _all_gather(gathered, x)
        return gathered.view(self.size, *x.shape)
