"""Ranks whose GPUs read each other's memory: sums of small messages in one kernel, or two, instead of NCCL's.

A message lies in a buffer that all ranks map. One shot: each rank adds up what all of them left, all of it.
Two shots: each adds up its part, then takes the others' parts: less is read, but ranks wait twice. NVLink
multicast is never used. Where the buffer ends, NCCL takes over. Knows nothing about models or steps.

Kernels: torch.ops.symm_mem. Calls share the buffer: each ends only when all ranks have read it.
"""

from enum import Enum

import torch
from torch import distributed
from torch.distributed import _symmetric_memory

from model.ranks import Ranks
from worker_svc.tp.communicator import DistributedRanks

SIZES = (2, 4, 8)
"""Other numbers of ranks add up in an order of their own on each rank."""
DTYPES = (torch.bfloat16, torch.float32)
ALIGNMENT_BYTES = 16
BUFFER_BYTES = 2 << 20
# Not measured yet; benchmarks/all_reduce.py does. Two ranks read as much in one shot as in two.
MOST_ONE_SHOT_BYTES = {2: 512 << 10, 4: 256 << 10, 8: 128 << 10}
MOST_TWO_SHOT_BYTES = {2: 0, 4: BUFFER_BYTES, 8: BUFFER_BYTES}
MOST_SUMMED_GATHER_BYTES = 32 << 10
"""What is gathered as a sum of zeros and one rank's numbers: two ranks' likeliest tokens of 2,048 rows."""


class Way(Enum):
    """How a message is summed."""

    ONE_SHOT = "one_shot"
    TWO_SHOT = "two_shot"
    NCCL = "nccl"


def choose_way(num_bytes: int, size: int) -> Way:
    """Return the fastest way of a message between so many ranks."""
    if num_bytes <= MOST_ONE_SHOT_BYTES[size]:
        return Way.ONE_SHOT
    return Way.TWO_SHOT if num_bytes <= MOST_TWO_SHOT_BYTES[size] else Way.NCCL


def gather_as_sum(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return what all_gather returns, by all_reduce: exact, but for the sign of zeros."""
    gathered = x.new_zeros((ranks.size, *x.shape))
    gathered[ranks.rank] = x
    ranks.all_reduce(gathered)
    return gathered


class SymmetricRanks(DistributedRanks):
    """Ranks over the default process group, all GPUs of one host."""

    def __init__(self, device: torch.device) -> None:
        """Map the buffer, on all ranks at once.

        Raises:
            RuntimeError: These GPUs cannot, or there are too many.
        """
        super().__init__()
        if self.size not in SIZES:
            raise RuntimeError(f"{self.size} ranks are not one of {SIZES}")
        group = distributed.group.WORLD
        assert group is not None
        self._group_name = group.group_name
        self._bytes_X = _symmetric_memory.empty(BUFFER_BYTES, dtype=torch.uint8, device=device)
        _symmetric_memory.rendezvous(self._bytes_X, self._group_name)

    def all_reduce(self, x: torch.Tensor) -> None:
        """Replace x by its sum over all ranks."""
        is_fit = x.dtype in DTYPES and x.nbytes % ALIGNMENT_BYTES == 0 == x.data_ptr() % ALIGNMENT_BYTES
        self.all_reduce_by(choose_way(x.nbytes, self.size) if is_fit else Way.NCCL, x)

    def all_reduce_by(self, way: Way, x: torch.Tensor) -> None:
        """Replace x by its sum over all ranks in a given way; x fits the buffer, unless the way is NCCL."""
        if way is Way.NCCL:
            super().all_reduce(x)
            return
        shared = self._bytes_X[: x.nbytes].view(x.dtype).view(x.shape)
        if way is Way.ONE_SHOT:
            torch.ops.symm_mem.one_shot_all_reduce_copy_out(shared, x, "sum", self._group_name, x)
        else:
            shared.copy_(x)
            torch.ops.symm_mem.two_shot_all_reduce_out(shared, "sum", self._group_name, x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of every rank, in a new first dimension."""
        if x.dtype is torch.float32 and self.size * x.nbytes <= MOST_SUMMED_GATHER_BYTES:
            return gather_as_sum(x, self)
        return super().all_gather(x)
