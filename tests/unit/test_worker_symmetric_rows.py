"""Rows that ranks share, whatever their streams do first: no flag is raised twice, no sum is wrong.

Hosts queue all steps at once; then any stream that need not wait does what comes next in it. Knows nothing
about GPUs: tests/gpu has the copies themselves.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.cut_residual import CutResidual
from worker_svc.tp import symmetric_rows
from worker_svc.tp.symmetric_rows import SymmetricRows

MOST_ROWS, HIDDEN, NUM_SUMS = 9, 2, 3
STEPS = (9, 4, 7, 9, 3)
NUM_SCHEDULES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A piece of a stream's work."""

    is_due: Callable[[], bool]
    do: Callable[[], object]


class Stream:
    """Does its work in order."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.work: deque[Work] = deque()
        self.num_queued = self.num_done = 0
        world.streams.append(self)

    def put(self, do: Callable[[], object], is_due: Callable[[], bool] = lambda: True) -> None:
        """Queue a piece of work; of a rank with one queue it comes behind all that was queued before."""
        rank = self._world.current
        ticket = rank.num_queued
        rank.num_queued += 1

        def finish() -> None:
            do()
            self.num_done += 1
            rank.num_done += 1

        def is_next() -> bool:
            return is_due() and (not self._world.has_one_queue or rank.num_done == ticket)

        self.num_queued += 1
        self.work.append(Work(is_due=is_next, do=finish))

    def wait_stream(self, other: "Stream") -> None:
        """Have what is queued next wait for all that the other stream has now."""
        num = other.num_queued
        self.put(lambda: None, lambda: other.num_done >= num)


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank's streams, and how much it has mapped."""

    main: Stream
    stack: list[Stream] = field(default_factory=list)
    num_mapped: int = 0
    num_queued: int = 0
    num_done: int = 0


class QueuedTensor(torch.Tensor):
    """Is copied to when the stream gets there."""

    world: "World"

    def copy_(self, source: torch.Tensor) -> "QueuedTensor":  # type: ignore[override]
        there, here = (one.as_subclass(torch.Tensor) for one in (self, source))
        self.world.stream.put(lambda: there.copy_(here))
        return self


class World:
    """All ranks; stands in for torch's streams and symmetric memory."""

    def __init__(self, size: int, *, has_one_queue: bool) -> None:
        self.size, self.has_one_queue = size, has_one_queue
        self.streams: list[Stream] = []
        self.ranks = [Rank(main=Stream(self)) for _ in range(size)]
        self._mapped: list[list[torch.Tensor]] = []
        self.current = self.ranks[0]

    @property
    def stream(self) -> Stream:
        """What the current rank's host queues to."""
        return self.current.stack[-1] if self.current.stack else self.current.main

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Queue to another stream."""
        self.current.stack.append(stream)
        yield
        self.current.stack.pop()

    def empty(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:  # noqa: ARG002
        """Return the current rank's part of what all ranks map next."""
        index = self.current.num_mapped
        if index == len(self._mapped):
            kind = type("Queued", (QueuedTensor,), {"world": self})
            self._mapped.append([torch.zeros(shape, dtype=dtype).as_subclass(kind) for _ in self.ranks])
        self.current.num_mapped += 1
        return self._mapped[index][self.ranks.index(self.current)]

    def rendezvous(self, own: torch.Tensor, _group: object) -> SimpleNamespace:
        """Let the current rank reach what others map."""
        mapped = next(one for one in self._mapped if any(part is own for part in one))
        return SimpleNamespace(
            rank=self.ranks.index(self.current),
            world_size=self.size,
            barrier=lambda: None,
            get_buffer=lambda rank, *_: mapped[rank],
        )

    def raise_flag(self, flags: torch.Tensor, place: int, number: int) -> None:
        """Queue what raises a flag, which must be down."""
        flags = flags.as_subclass(torch.Tensor).view(torch.int32)

        def do() -> None:
            assert flags[place] == 0, "a flag is raised that nobody has seen"
            flags[place] = number

        self.stream.put(do)

    def await_flag(self, flag: torch.Tensor) -> None:
        """Queue what waits for a flag and takes it down."""
        flag = flag.as_subclass(torch.Tensor)
        self.stream.put(flag.zero_, lambda: bool(flag[0]))

    def add_parts(self, rows: torch.Tensor, own: torch.Tensor, came: torch.Tensor, *, rank: int) -> None:  # noqa: ARG002
        """Queue a sum."""
        rows, came = rows.as_subclass(torch.Tensor), came.as_subclass(torch.Tensor)
        self.stream.put(lambda: rows.add_(own + came.sum(0)))

    def run(self, seed: int) -> None:
        """Do all that is queued, in some order."""
        order = random.Random(seed)
        while left := [stream for stream in self.streams if stream.work]:
            due = [stream for stream in left if stream.work[0].is_due()]
            assert due, "all wait for each other"
            order.choice(due).work.popleft().do()


def make_world(monkeypatch: pytest.MonkeyPatch, size: int, *, has_one_queue: bool) -> World:
    """Have SymmetricRows take this world for torch."""
    world = World(size, has_one_queue=has_one_queue)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: Stream(world))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: world.stream)
    monkeypatch.setattr(torch.cuda, "stream", world.on)
    monkeypatch.setattr(torch.ops.symm_mem, "stream_write_value32_", world.raise_flag, raising=False)
    for name, stand_in in (
        ("_symmetric_memory", world),
        ("distributed", SimpleNamespace(group=SimpleNamespace(WORLD="all"))),
        ("await_flag", world.await_flag),
        ("add_parts", world.add_parts),
    ):
        monkeypatch.setattr(symmetric_rows, name, stand_in)
    return world


class Host:
    """Queues one rank's steps."""

    def __init__(self, world: World, rank: int, numbers: torch.Tensor) -> None:
        self._world, self._rank, self._numbers = world, rank, numbers
        self._bare = torch.zeros(MOST_ROWS, HIDDEN)
        self.seen: list[torch.Tensor] = []

    def queue_steps(self) -> None:
        """Queue them all."""
        world = self._world
        world.current = world.ranks[self._rank]
        share = -(-MOST_ROWS // world.size)
        shared = SymmetricRows((MOST_ROWS, HIDDEN), share, like=torch.zeros(0))
        for index, num_rows in enumerate(STEPS):
            self._queue_step(shared, index, num_rows)

    def _queue_step(self, shared: SymmetricRows, index: int, num_rows: int) -> None:
        world, residual = self._world, shared.rows_TE.as_subclass(torch.Tensor)
        share = -(-num_rows // world.size)
        cut = tuple(slice(rank * share, min((rank + 1) * share, num_rows)) for rank in range(world.size))
        stream = CutResidual(shared, cut, rank=self._rank)
        world.stream.put(residual[:num_rows].zero_)
        for number in range(NUM_SUMS):
            parts, seen = self._numbers[index, number, self._rank], torch.zeros(num_rows, HIDDEN)

            def make_part(rows: slice, parts: torch.Tensor = parts) -> Any:
                bare = self._bare[rows]
                world.stream.put(lambda: bare.copy_(parts[rows]))
                return bare

            stream.add(make_part)
            for rows in stream.arriving():
                world.stream.put(partial(seen[rows].copy_, residual[rows]))
            self.seen.append(seen)
        # Chosen rows go where no residual lies, and what comes of them where one lay.
        world.stream.put(self._bare[:2].zero_)
        world.stream.put(residual[:2].zero_)


@pytest.mark.parametrize("has_one_queue", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_whoever_is_first_sums_are_the_same(
    size: int, has_one_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (len(STEPS), NUM_SUMS, size, MOST_ROWS, HIDDEN)
    for seed in range(NUM_SCHEDULES):
        numbers = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()
        with monkeypatch.context() as patch:
            world = make_world(patch, size, has_one_queue=has_one_queue)
            hosts = [Host(world, rank, numbers) for rank in range(size)]
            for host in hosts:
                host.queue_steps()
            world.run(seed)
        sums = numbers.sum(2).cumsum(1)
        expected = [
            sums[index, number, :num_rows]
            for index, num_rows in enumerate(STEPS)
            for number in range(NUM_SUMS)
        ]
        for host in hosts:
            for place, (seen, wanted) in enumerate(zip(host.seen, expected, strict=True)):
                assert torch.equal(seen, wanted), f"order {seed}, sum {place}"
