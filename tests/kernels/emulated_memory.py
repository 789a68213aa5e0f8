"""Memory, barriers, copies and products of an emulated Gluon program. Knows nothing about the language.

Products take place when they are waited for, not before, so that a buffer that is filled again too early
gives wrong numbers. A barrier that nobody completes fails.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

GENEROUS_SECONDS = 20


class Tile(np.ndarray[Any, Any]):
    """A tensor in registers."""

    type = SimpleNamespace(layout=None)

    def to(self, dtype: Any, *, bitcast: bool = False) -> Any:
        """Convert."""
        return self.view(dtype) if bitcast else self.astype(dtype)


def tile(values: Any) -> Any:
    return np.asarray(values).view(Tile)


class Pointer:
    """A place, or many, in a flat array."""

    def __init__(self, array: Any, offset: Any = 0) -> None:
        self.array, self.offset = array, offset

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.array, self.offset + offset)

    def to(self, _dtype: Any) -> "Pointer":
        """Return the place: an address as a number is used for nothing else."""
        return self


class Shared:
    """Shared memory."""

    layout = None

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def index(self, number: int) -> "Shared":
        """Return one buffer of some."""
        return Shared(self.array[int(number)])

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        """Return some rows."""
        assert dim == 0
        return Shared(self.array[start : start + length])

    def _reinterpret(self, _dtype: Any, shape: Sequence[int], _layout: Any) -> "Shared":
        return Shared(self.array.reshape(shape))

    def reshape(self, shape: Sequence[int]) -> "Shared":
        """Return a view."""
        return Shared(self.array.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> "Shared":
        """Return a view."""
        return Shared(self.array.transpose(order))

    def load(self, _layout: Any) -> Any:
        """Read."""
        return tile(self.array.copy())

    def store(self, values: Any) -> None:
        """Write."""
        self.array[...] = values


class Barrier:
    """An mbarrier: a phase is complete once so many have arrived and all bytes that were announced, too."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.arrived = self.num_bytes = self.num_complete = 0

    def change(self, *, arrived: int = 0, num_bytes: int = 0) -> None:
        """Count what has come, or is still to come."""
        with self.changed:
            self.arrived += arrived
            self.num_bytes += num_bytes
            assert self.arrived <= self.count, "more arrive than belong to the phase"
            if self.arrived == self.count and self.num_bytes == 0:
                self.arrived, self.num_complete = 0, self.num_complete + 1
                self.changed.notify_all()

    def wait(self, phase: int) -> None:
        """Wait until the phase of this parity is complete."""
        with self.changed:
            is_done = self.changed.wait_for(lambda: self.num_complete % 2 != phase, GENEROUS_SECONDS)
        assert is_done, "nobody completes the barrier"


class Barriers:
    """Some barriers in shared memory."""

    def __init__(self, number: int) -> None:
        self.barriers = [Barrier() for _ in range(number)]
        self.shape = (number, 1)

    def index(self, number: int) -> Barrier:
        """Return one."""
        return self.barriers[int(number)]


def one_of(barrier: Any) -> Barrier:
    return barrier.index(0) if isinstance(barrier, Barriers) else barrier


class Descriptor:
    """What the tensor memory accelerator reads and writes: blocks, zero outside."""

    layout = "tiles"

    def __init__(self, numbers: Any, block: Sequence[int]) -> None:
        self._numbers, self.dtype = numbers, numbers.dtype
        self.block_type = SimpleNamespace(shape=list(block), nbytes=math.prod(block) * numbers.itemsize)

    def block(self, place: Sequence[int]) -> tuple[Any, tuple[slice, ...]]:
        """Return a view of what there is of a block, and where in the block it lies."""
        there, within = [], []
        for at, size, end in zip(map(int, place), self.block_type.shape, self._numbers.shape, strict=True):
            first, last = min(max(at, 0), end), max(min(at + size, end), 0)
            there.append(slice(first, last))
            within.append(slice(first - at, last - at))
        return self._numbers[tuple(there)], tuple(within)


def copy(source: Descriptor, place: Sequence[int], barrier: Any, target: Shared) -> None:
    there, within = source.block(place)
    target.array[...] = 0
    target.array[within] = there
    one_of(barrier).change(num_bytes=-source.block_type.nbytes)


def copy_back(target: Descriptor, place: Sequence[int], source: Shared) -> None:
    there, within = target.block(place)
    there[...] = source.array[within]


class Product:
    """A product that may not have taken place."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute, self.value = compute, None


class _Pending(threading.local):
    """A thread's products, oldest first."""

    def __init__(self) -> None:
        self.products: list[Product] = []


_pending = _Pending()


def _value(acc: Any) -> Any:
    return acc.value if isinstance(acc, Product) else acc


def product(left: Any, right: Shared, acc: Any, *, use_acc: bool = True, is_async: bool) -> Product:
    assert is_async
    values = left.array if isinstance(left, Shared) else left

    def compute() -> Any:
        result = values.astype(np.float32) @ right.array.astype(np.float32)
        return tile(result + _value(acc) if use_acc else result)

    _pending.products.append(Product(compute))
    return _pending.products[-1]


def wait_for_products(num_left: int, deps: Sequence[Any]) -> Any:
    time.sleep(0.0005)  # whoever was told too early that a buffer is empty fills it now
    while len(_pending.products) > num_left:
        oldest = _pending.products.pop(0)
        oldest.value = oldest.compute()
    values = tuple(dep if dep in _pending.products else _value(dep) for dep in deps)
    return values[0] if len(values) == 1 else values
