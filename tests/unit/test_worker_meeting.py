"""The name of a group's life: the same for all ranks that live, whatever earlier ones have left behind."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import pytest

from worker_svc.tp.meeting import agree_on_name


class MemoryStore:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, timeout=60), f"{key} never came"
            return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def meet(store: MemoryStore, ranks: list[int], size: int) -> Callable[[], list[str]]:
    """Start these ranks; return what waits for the names that they get."""
    pool = ThreadPoolExecutor(len(ranks))
    started = [pool.submit(agree_on_name, store, rank=rank, size=size) for rank in ranks]

    def names() -> list[str]:
        found = [one.result(timeout=60) for one in started]
        pool.shutdown()
        return found

    return names


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_all_ranks_get_one_name_and_each_life_another(ranks: list[int]) -> None:
    store = MemoryStore()
    lives = [meet(store, ranks, 4)() for _ in range(5)]
    assert [len(set(names)) for names in lives] == [1] * 5
    assert len({names[0] for names in lives}) == 5


def test_words_of_ranks_that_have_ended_are_answered_in_vain() -> None:
    store = MemoryStore()
    store.set("ask/1", "left by an earlier rank 1")
    leading = meet(store, [0], 2)
    name = store.get("answer/left by an earlier rank 1").decode()
    assert meet(store, [1], 2)() == leading() == [name]
