"""Joins one rank to its worker group: finds the others, shares memory with those of its host, and watches.

    host 0                                host 1
    rank 0 ──ring──▶ rank 1, rank 2       rank 3 (relays) ──ring──▶ rank 3, rank 4, rank 5
       └────────────────TCP─────────────────▶┘

Knows nothing about models, nor about what the messages mean.
"""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
from torch import distributed
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from worker_svc.errors import ConfigError, DeviceLostError, StartupError
from worker_svc.tp.group import TpGroup
from worker_svc.tp.host_link import (
    TOKEN_BYTES,
    HostLink,
    accept_hosts,
    connect_to_leader,
    open_listener,
)
from worker_svc.tp.launcher_watch import LauncherWatch
from worker_svc.tp.meeting import agree_on_name
from worker_svc.tp.messages import SPIN_SECONDS, next_message, write_message
from worker_svc.tp.rank_watch import RankWatch
from worker_svc.tp.shared_block import SharedBlock

STORE_LIMIT = timedelta(minutes=5)
"""How long a rank looks for the store to meet in, where rank 0 makes it."""
LAUNCHER_STORE_LIMIT = timedelta(seconds=30)
"""The same where it is torchrun's: there before any rank, unless it has gone. torch looks twice as long."""
GET_LIMIT = timedelta(minutes=30)
"""How long it waits for what others write there, as torch does."""
OnLost = Callable[[DeviceLostError], object]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCard:
    """What each rank tells all others when they meet."""

    rank: int
    pid: int
    host_index: int
    options: str
    """All that must be the same on all ranks."""
    block_path: str = ""
    """Where the first rank of a host has put the block."""
    port: int = 0
    """Where rank 0 listens for other hosts."""
    token: bytes = b""


class Membership:
    """A rank's ties to the others, from its join until it leaves."""

    def __init__(
        self,
        group: TpGroup,
        block: SharedBlock,
        *,
        watches: Sequence[RankWatch | LauncherWatch],
        links: Sequence[HostLink],
    ) -> None:
        self._group = group
        self._block = block
        self._watches = watches
        self._links = links
        self._writer = block.writer() if group.is_leader and group.local_size > 1 else None
        self._reader = None if group.is_leader else block.reader(_reader_index(group))
        self._spin_seconds = 0.0 if group.device == "cpu" else SPIN_SECONDS

    @property
    def rank(self) -> int:
        """This rank."""
        return self._group.rank

    def gather(self, own: str) -> list[str]:
        """Give a value to all ranks and return theirs, by rank. Waits for all of them.

        Raises:
            StartupError: if one of them has ended.
        """
        return _gather(own, self._group.size)

    def publish(self, message: bytes) -> None:
        """Hand a message to all other ranks: for rank 0, and one thread of it."""
        for link in self._links:
            link.send(message)
        if self._writer is not None:
            write_message(self._writer, message)

    def next_message(self) -> bytes | None:
        """Wait for the next message of rank 0; None once the group stops."""
        assert self._reader is not None, "rank 0 leads"
        return next_message(
            self._reader, is_stopping=lambda: self._block.is_stopping, spin_seconds=self._spin_seconds
        )

    def leave(self) -> None:
        """End in good order; where rank 0 does so, the group ends.

        The process group is left to the process's end: NCCL would wait for the graphs that use it.
        """
        for watch in self._watches:
            watch.stop()
        if self._group.is_leader:
            self._block.stop()
            for link in self._links:
                link.end()


def join_group(group: TpGroup, *, options: str, limit_seconds: float, on_lost: OnLost) -> Membership:
    """Meet the other ranks; waits until all are there.

    Args:
        group: This rank's place.
        options: All that must be the same on all ranks, to be compared.
        limit_seconds: How long a rank may show no sign of life.
        on_lost: Called from any thread once another rank or torchrun is lost; this one can go no further.

    Raises:
        StartupError: if the ranks do not fit together, or one of them has ended.
    """
    launcher_watch = LauncherWatch(group.launcher_pid, on_lost)
    launcher_watch.start()
    _open_process_group(group)
    num_readers = group.local_size - group.is_leader_host
    block_of = {"num_ranks": group.local_size, "num_readers": num_readers}
    block = SharedBlock.create(**block_of) if group.local_rank == 0 else None
    listener = open_listener() if group.is_leader and group.size > group.local_size else None
    own = RankCard(
        rank=group.rank,
        pid=os.getpid(),
        host_index=group.host_index,
        options=options,
        block_path="" if block is None else block.path,
        port=0 if listener is None else listener.getsockname()[1],
        token=secrets.token_bytes(TOKEN_BYTES) if group.is_leader else b"",
    )
    cards = _gather(own, group.size)
    check_cards(cards)
    neighbours = [card for card in cards if card.host_index == group.host_index]
    # Opened before this rank's beats are looked for: who has opened it keeps it.
    block = block or SharedBlock.open(neighbours[0].block_path, **block_of)
    watch = RankWatch(
        block,
        ranks=[(card.rank, card.pid) for card in neighbours],
        own_index=group.local_rank,
        limit_seconds=limit_seconds,
        on_lost=on_lost,
    )
    watch.start()
    make_link = partial(HostLink, limit_seconds=limit_seconds, on_lost=on_lost)
    links = _connect(group, cards, block, listener=listener, make_link=make_link)
    return Membership(group, block, watches=(launcher_watch, watch), links=links)


def _open_process_group(group: TpGroup) -> None:
    """Meet all ranks where torchrun says; calls that carry no tensors of a GPU go over gloo."""
    backend = "gloo" if group.device == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        if group.device != "cpu":
            torch.cuda.set_device(group.device)
        limit = LAUNCHER_STORE_LIMIT if group.has_launcher_store else STORE_LIMIT
        store, rank, size = next(rendezvous("env://", group.rank, group.size, timeout=limit))
        store.set_timeout(GET_LIMIT)
        store = PrefixStore(agree_on_name(store, rank=rank, size=size), store)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        raise StartupError(f"the ranks of the worker group do not find each other: {error}") from error


def check_cards(cards: Sequence[RankCard]) -> None:
    """Refuse ranks that would not compute the same.

    Raises:
        ConfigError: naming the first such rank.
    """
    for card in cards:
        if card.options != cards[0].options:
            raise ConfigError(
                f"rank {card.rank} was started with other options than rank 0: "
                f"{card.options}, not {cards[0].options}"
            )


def _gather(own: Value, size: int) -> list[Value]:
    values = [own] * size
    try:
        distributed.all_gather_object(values, own)
    except RuntimeError as error:
        raise StartupError(f"another rank of the worker group has ended while it started: {error}") from error
    return values


def _connect(
    group: TpGroup,
    cards: Sequence[RankCard],
    block: SharedBlock,
    *,
    listener: socket.socket | None,
    make_link: Callable[..., HostLink],
) -> list[HostLink]:
    """Connect the first rank of each host with rank 0; messages that come go into the host's ring."""
    leader, links = cards[0], list[HostLink]()
    if listener is not None:
        num_hosts = len({card.host_index for card in cards}) - 1
        for connection in accept_hosts(listener, leader.token, num_hosts=num_hosts):
            links.append(make_link(connection, "another host", on_message=_refuse, on_end=_refuse))
        listener.close()
    elif group.local_rank == 0 and not group.is_leader:
        connection = connect_to_leader(group.leader_host, leader.port, token=leader.token)
        write = partial(write_message, block.writer())
        links.append(make_link(connection, "the first host", on_message=write, on_end=block.stop))
    for link in links:
        link.start()
    return links


def _refuse(*_: bytes) -> None:
    raise ConnectionError("a host that follows must not lead")


def _reader_index(group: TpGroup) -> int:
    """Tell which reader of its host's ring a rank is: rank 0 is none."""
    return group.local_rank - group.is_leader_host
