"""Ranks that are threads of one process: what needs several of them is tested without starting processes.

One computes at a time: Triton's interpreter has no state for several. Knows nothing about what they compute.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from kernels.rank_parts import add_parts_ref
from model.row_cut import cut_rows

Result = TypeVar("Result")
LIMIT_SECONDS = 110.0


class ThreadRank:
    """One of the ranks, as a model sees them."""

    def __init__(self, rank: int, meeting: "Meeting") -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:  # noqa: ARG002
        x.copy_(self.all_gather(x).sum(0))
        return False

    def is_short(self, x: torch.Tensor) -> bool:
        """Some are: models that run steps of both kinds take both ways."""
        return len(x) % 2 == 1

    def add_sum(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        *,
        squares: torch.Tensor | None = None,  # noqa: ARG002
    ) -> bool:
        residual.add_(self.all_gather(x).sum(0))
        return False

    def share_rows(self, num_rows: int, num_hidden: int, *, like: torch.Tensor) -> "ThreadRows | None":
        """Where so few are cut at all."""
        if not cut_rows(num_rows, num_hidden * like.itemsize, num_ranks=self.size):
            return None
        return ThreadRows(like.new_zeros(num_rows, num_hidden), self.rank, self._meeting)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return torch.stack(self._meeting.exchange(self.rank, x))


class ThreadRows:
    """A residual whose rows each rank sums up a part of."""

    def __init__(self, rows_TE: torch.Tensor, rank: int, meeting: "Meeting") -> None:
        self.rows_TE, self._rank, self._meeting = rows_TE, rank, meeting

    def leave(self, part_RE: torch.Tensor, *, owner: int) -> None:
        self._meeting.parts[self._rank, owner] = part_RE.clone()

    def add(self, part_RE: torch.Tensor, rows: slice) -> None:
        self._meeting.wait()
        parts = self._meeting.parts
        others = [parts.pop((rank, self._rank)) for rank in range(self._meeting.size) if rank != self._rank]
        self.rows_TE[rows] = add_parts_ref(self.rows_TE[rows], part_RE, torch.stack(others), rank=self._rank)
        self._meeting.sums[self._rank] = rows, self.rows_TE[rows].clone()

    def await_sums(self, owner: int) -> None:
        self._meeting.wait()
        rows, sums_RE = self._meeting.sums[owner]
        self.rows_TE[rows] = sums_RE


class Meeting:
    """Where the ranks leave their tensors for each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_exchanged = 0
        """Numbers that each rank gave away so far."""
        self.parts: dict[tuple[int, int], torch.Tensor] = {}
        """By who left it and whose rows it is of."""
        self.sums: dict[int, tuple[slice, torch.Tensor]] = {}
        self._tensors: list[torch.Tensor] = [torch.empty(0)] * size
        self._barrier = threading.Barrier(size, timeout=LIMIT_SECONDS)
        self.turn = threading.Lock()
        """Held by the rank that computes."""

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._tensors[rank] = x.clone()
        if rank == 0:
            self.num_exchanged += x.numel()
        self.wait()
        everyones = list(self._tensors)
        # Nobody leaves the next one before all have taken these.
        self.wait()
        return everyones

    def wait(self) -> None:
        """Wait until all ranks do."""
        self.turn.release()
        try:
            self._barrier.wait()
        finally:
            self.turn.acquire()

    def abort(self) -> None:
        """Let no rank wait for one that failed."""
        self._barrier.abort()


def run_ranks(size: int, work: Callable[[ThreadRank], Result]) -> list[Result]:
    """Run every rank's work at once; return what each returned."""
    return run_in_meeting(Meeting(size), work)


def run_in_meeting(meeting: Meeting, work: Callable[[ThreadRank], Result]) -> list[Result]:
    """Do what run_ranks does, with an account of what was exchanged."""

    def run(rank: int) -> Result:
        with meeting.turn:
            try:
                return work(ThreadRank(rank, meeting))
            except BaseException:
                meeting.abort()
                raise

    with ThreadPoolExecutor(meeting.size) as pool:
        futures = [pool.submit(run, rank) for rank in range(meeting.size)]
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        # The cause rather than the broken barriers of those who waited.
        for failure in sorted(failures, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
            raise failure
        return [future.result() for future in futures]
