"""Ranks whose GPUs map each other's memory: sums of small messages in one kernel, or two, not by NCCL.

Pushed: each rank writes its message into a mailbox of each other, and adds up what came. Two shots: each
leaves it in a buffer that all ranks map, adds up its part of what all of them left, then takes the others'
parts: less is read, but ranks wait twice. One shot: each adds up all of that; nothing chooses it, for pushed
messages are faster. NVLink multicast is never used. Larger messages are NCCL's. Knows nothing about models.

Kernels: kernels/all_reduce.py, whose neighbours may overlap it, and torch.ops.symm_mem, whose calls share the
buffer: each ends only when all ranks have read it.
"""

import sys
from enum import Enum

import torch
from torch import distributed
from torch.distributed import _symmetric_memory

from kernels import all_reduce as pushed
from kernels.all_reduce import Mailbox, mailbox_words, make_mailbox
from model.ranks import Ranks
from model.row_cut import cut_rows, most_rows_of_one
from worker_svc.tp.communicator import DistributedRanks
from worker_svc.tp.symmetric_rows import SymmetricRows

SIZES = (2, 4, 8)
"""Other numbers of ranks add up in an order of their own on each rank."""
SHARING_SIZES = (2,)
"""Measured; others leave large messages to NCCL."""
DTYPES = (torch.bfloat16, torch.float32)
ALIGNMENT_BYTES = 16
BUFFER_BYTES = 2 << 20
# Two ranks as benchmarks/all_reduce.py measured them on H200s, up to 8 MiB: 25 us, by NCCL 57. Four and eight
# are reckoned: what is pushed grows with the number of peers, 3.3 us a MiB for each, and two shots take 10 us
# and more.
MOST_PUSHED_BYTES = {2: 256 << 20, 4: 512 << 10, 8: 256 << 10}
MAILBOX_BYTES = {2: 8 << 20, 4: 1 << 20, 8: 1 << 20}
"""Of a message that is pushed at once; larger ones are pushed piece by piece."""
MOST_SUMMED_GATHER_BYTES = 32 << 10
"""What is gathered as a sum of zeros and one rank's numbers: two ranks' likeliest tokens of 2,048 rows."""


class Way(Enum):
    """How a message is summed."""

    PUSHED = "pushed"
    ONE_SHOT = "one_shot"
    TWO_SHOT = "two_shot"
    NCCL = "nccl"


def most_bytes(way: Way) -> int:
    """Return what a way can take."""
    return BUFFER_BYTES if way in (Way.ONE_SHOT, Way.TWO_SHOT) else sys.maxsize


def choose_way(num_bytes: int, size: int) -> Way:
    """Return the fastest way of a message between so many ranks."""
    if num_bytes <= MOST_PUSHED_BYTES[size]:
        return Way.PUSHED
    return Way.TWO_SHOT if num_bytes <= BUFFER_BYTES else Way.NCCL


def gather_as_sum(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return what all_gather returns, by all_reduce: exact, but for the sign of zeros."""
    gathered = x.new_empty((ranks.size, *x.shape))
    gathered[ranks.rank] = x
    # Zeros last: a kernel, which a sum may overlap, where the copy is none.
    gathered[: ranks.rank].fill_(0.0)
    gathered[ranks.rank + 1 :].fill_(0.0)
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
        self.mailbox = self._open_mailbox(device)
        """Of pushed messages."""

    def _open_mailbox(self, device: torch.device) -> Mailbox:
        num_words = mailbox_words(self.size, MAILBOX_BYTES[self.size])
        own = _symmetric_memory.empty(num_words, dtype=torch.int32, device=device)
        self._memory = memory = _symmetric_memory.rendezvous(own, self._group_name)
        begins = [memory.get_buffer(rank, own.shape, own.dtype).data_ptr() for rank in range(self.size)]
        # Of what is shared: this tensor may lie behind it, on all ranks alike.
        offset = own.data_ptr() - begins[self.rank]
        mailbox = make_mailbox(own, [begin + offset for begin in begins], rank=self.rank)
        # In the stream's order: all are empty before anyone writes.
        memory.barrier()
        return mailbox

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:
        """Replace x by its sum over all ranks; tell whether squares came, too, and a kernel may overlap."""
        way = self._way(x)
        self.all_reduce_by(way, x, squares=squares)
        return way is Way.PUSHED

    def _way(self, x: torch.Tensor) -> Way:
        is_fit = (
            x.dtype in DTYPES
            and x.nbytes
            and x.nbytes % ALIGNMENT_BYTES == 0 == x.data_ptr() % ALIGNMENT_BYTES
        )
        return choose_way(x.nbytes, self.size) if is_fit else Way.NCCL

    def is_short(self, x: torch.Tensor) -> bool:
        """Whether x is pushed."""
        return self._way(x) is Way.PUSHED

    def add_sum(
        self, x: torch.Tensor, residual: torch.Tensor, *, squares: torch.Tensor | None = None
    ) -> bool:
        """Add x's sum over all ranks to the residual; squares come, too, and a kernel may overlap."""
        pushed.all_reduce(x, self.mailbox, residual=residual, squares_RJ=squares, is_dependent=True)
        return True

    def share_rows(self, num_rows: int, num_hidden: int, *, like: torch.Tensor) -> SymmetricRows | None:
        """Map a residual of up to so many rows, on all ranks at once, where steps of such rows are cut."""
        if self.size not in SHARING_SIZES or not cut_rows(
            num_rows, num_hidden * like.itemsize, num_ranks=self.size
        ):
            return None
        most_owned = most_rows_of_one(num_rows, self.size)
        return SymmetricRows((num_rows, num_hidden), most_owned, like=like)

    def all_reduce_by(self, way: Way, x: torch.Tensor, *, squares: torch.Tensor | None = None) -> None:
        """Replace x by its sum over all ranks in a given way, which can take it; squares by PUSHED only."""
        if way is Way.PUSHED:
            pushed.all_reduce(x, self.mailbox, squares_RJ=squares, is_dependent=True)
            return
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
