"""Agrees on a name for one life of a worker group, in a store that keeps the keys of earlier lives.

torchrun gives all lives of a group the same store, and the number of its restarts is one of each host's own.
What ranks write under the name cannot be taken for what an earlier rank has left: addresses, for one. Knows
nothing about what is done with the name.

    rank r: ask/r = a random word; wait for answer/word = name; came/name/r
    rank 0: answer each word that it finds, until all have come
"""

import secrets
import time
from typing import Protocol

MEETING_SECONDS = 300.0
"""How long rank 0 waits for the others, which torchrun starts with it."""
_LOOK_SECONDS = 0.01


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""

    def check(self, keys: list[str]) -> bool:
        """Tell whether all of these are there."""


def agree_on_name(store: Store, *, rank: int, size: int) -> str:
    """Return the name, the same on all ranks, once they are there.

    Raises:
        RuntimeError: if some do not come.
    """
    own = secrets.token_hex(8)
    if rank == 0:
        _name_for_all(store, own, size)
        return own
    store.set(f"ask/{rank}", own)
    name = store.get(f"answer/{own}").decode()
    store.set(f"came/{name}/{rank}", own)
    return name


def _name_for_all(store: Store, name: str, size: int) -> None:
    missing, answered = set(range(1, size)), set[str]()
    deadline = time.monotonic() + MEETING_SECONDS
    while missing := {rank for rank in missing if not store.check([f"came/{name}/{rank}"])}:
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {sorted(missing)} did not come within {MEETING_SECONDS:g} s")
        for rank in missing:
            word = store.get(f"ask/{rank}").decode() if store.check([f"ask/{rank}"]) else ""
            if word and word not in answered:
                store.set(f"answer/{word}", name)
                answered.add(word)
        time.sleep(_LOOK_SECONDS)
