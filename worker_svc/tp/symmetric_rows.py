"""Rows in memory that all GPUs of a host map; copy engines carry parts and sums, beside whatever computes.

A rank's part of another's rows is written to that rank's memory, a flag behind it; the owner adds up what
came and writes the sums to the others' rows, a flag behind them. Nobody asks whether there is room, for each
has been told. A rank leaves its next part of an owner's rows once it has that owner's last sums, which lie
behind adding up the last parts; an owner writes its next sums once it has all parts of them, which ranks
leave behind all that reads the last ones. So a flag that is raised is down, too. Each copy is queued in
front of the wait that another rank's copy ends, so that none of them waits behind one.

Knows nothing about models.
"""

import torch
from torch import distributed
from torch.distributed import _symmetric_memory

from kernels.rank_parts import add_parts, await_flag

PART, SUM = range(2)
"""What a flag stands for."""


class SymmetricRows:
    """What model/ranks.py calls SharedRows, over the default process group."""

    def __init__(self, shape: tuple[int, int], most_owned: int, *, like: torch.Tensor) -> None:
        """Map the memory, on all ranks at once.

        Args:
            shape: Of all rows.
            most_owned: The most rows of one rank.
            like: Tells dtype and device.
        """
        self._device = like.device
        self._memories: list[object] = []
        self._rows = self._open(shape, like.dtype)
        size, self.rows_TE = len(self._rows), self._rows[self._rank]
        self._parts = self._open((size - 1, most_owned, shape[1]), like.dtype)
        self._flags = self._open((2 * size,), torch.int32)
        self._copies = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]

    def _open(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return zeros of every rank, as this one reaches them."""
        group = distributed.group.WORLD
        assert group is not None
        own = _symmetric_memory.empty(shape, dtype=dtype, device=self._device)
        memory = _symmetric_memory.rendezvous(own, group)
        self._memories.append(memory)
        own.zero_()
        # In the stream's order: nobody writes before all are zero.
        memory.barrier()
        self._rank = memory.rank
        begin = memory.get_buffer(memory.rank, shape, dtype).data_ptr()
        # Of what is shared: this tensor may lie behind it, on all ranks alike.
        offset = (own.data_ptr() - begin) // own.itemsize
        return [
            own if rank == memory.rank else memory.get_buffer(rank, shape, dtype, offset)
            for rank in range(memory.world_size)
        ]

    def leave(self, part: torch.Tensor, *, owner: int) -> None:
        """Copy this rank's part of another's rows to that one."""
        came = self._parts[owner][self._rank - (self._rank > owner), : len(part)]
        self._copy(part, came, owner=owner, kind=PART)

    def add(self, part: torch.Tensor, rows: slice) -> None:
        """Add all ranks' parts to this rank's rows; copy the sums to all others."""
        sums = self.rows_TE[rows]
        for rank in self._others():
            self._await(rank, PART)
        add_parts(sums, part, self._parts[self._rank][:, : len(sums)], rank=self._rank)
        for rank in self._others():
            self._copy(sums, self._rows[rank][rows], owner=rank, kind=SUM)

    def await_sums(self, owner: int) -> None:
        """Wait until another rank's rows are there, and until this one's, which may change, have left."""
        torch.cuda.current_stream(self._device).wait_stream(self._copies)
        self._await(owner, SUM)

    def _others(self) -> list[int]:
        """Return the other ranks, each rank another one first."""
        size = len(self._rows)
        return [(self._rank + step) % size for step in range(1, size)]

    def _await(self, rank: int, kind: int) -> None:
        flag = kind * len(self._rows) + rank
        await_flag(self._flags[self._rank][flag : flag + 1])

    def _copy(self, here: torch.Tensor, there: torch.Tensor, *, owner: int, kind: int) -> None:
        """Copy behind all that is queued, then raise the flag; what is queued later does not wait."""
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            there.copy_(here)
            flags = self._flags[owner].view(torch.uint32)
            torch.ops.symm_mem.stream_write_value32_(flags, kind * len(self._rows) + self._rank, 1)
