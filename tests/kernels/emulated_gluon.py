"""Runs Gluon kernels on a CPU, which has no interpreter for them: as plain Python over NumPy arrays.

A partition of a program is a thread, programs come one after the other. Products take place when they
are waited for, not before, so that a buffer that is filled again too early gives wrong numbers. A barrier
that nobody completes fails. Knows just what the kernels here use.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from triton.language import constexpr
from triton.runtime.jit import JITFunction

GENEROUS_SECONDS = 20


class Tile(np.ndarray[Any, Any]):
    """A tensor in registers."""

    type = SimpleNamespace(layout=None)

    def to(self, dtype: Any) -> Any:
        """Convert."""
        return self.astype(dtype)


def _tile(values: Any) -> Any:
    return np.asarray(values).view(Tile)


class Pointer:
    """A place, or many, in a flat array."""

    def __init__(self, array: Any, offset: Any = 0) -> None:
        self.array, self.offset = array, offset

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.array, self.offset + offset)


class Shared:
    """Shared memory."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def index(self, number: int) -> "Shared":
        """Return one buffer of some."""
        return Shared(self.array[int(number)])

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        """Return some rows."""
        assert dim == 0
        return Shared(self.array[start : start + length])

    def reshape(self, shape: Sequence[int]) -> "Shared":
        """Return a view."""
        return Shared(self.array.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> "Shared":
        """Return a view."""
        return Shared(self.array.transpose(order))

    def load(self, _layout: Any) -> Any:
        """Read."""
        return _tile(self.array.copy())

    def store(self, values: Any) -> None:
        """Write."""
        self.array[...] = values


class Barrier:
    """An mbarrier: a phase is complete once so many have arrived and all bytes that were announced, too."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.arrived = self.num_bytes = self.num_complete = 0

    def change(self, *, arrived: int, num_bytes: int) -> None:
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

    def index(self, number: int) -> Barrier:
        """Return one."""
        return self.barriers[int(number)]


class Descriptor:
    """What the tensor memory accelerator reads and writes: blocks, zero outside."""

    layout = "tiles"

    def __init__(self, numbers: Any, block: Sequence[int]) -> None:
        self._numbers, self.dtype = numbers, numbers.dtype
        self.block_type = SimpleNamespace(shape=list(block), nbytes=math.prod(block) * numbers.itemsize)

    def block(self, place: Sequence[int]) -> Any:
        """Return a view of what there is of a block."""
        sizes = self.block_type.shape
        return self._numbers[
            tuple(slice(int(at), int(at) + size) for at, size in zip(place, sizes, strict=True))
        ]


def _copy(source: Descriptor, place: Sequence[int], barrier: Barrier, target: Shared) -> None:
    found = source.block(place)
    target.array[...] = 0
    target.array[tuple(map(slice, found.shape))] = found
    barrier.change(arrived=0, num_bytes=-source.block_type.nbytes)


def _copy_back(target: Descriptor, place: Sequence[int], source: Shared) -> None:
    found = target.block(place)
    found[...] = source.array[tuple(map(slice, found.shape))]


def _product(
    left: Any, right: Shared, acc: Any, *, use_acc: bool = True, is_async: bool
) -> Callable[[], Any]:
    assert is_async
    values = left.array if isinstance(left, Shared) else left

    def compute() -> Any:
        result = values.astype(np.float32) @ right.array.astype(np.float32)
        return _tile(result + acc if use_acc else result)

    return compute


def _wait_for_products(_num_left: int, deps: Sequence[Callable[[], Any]]) -> Any:
    (product,) = deps
    return product() if callable(product) else product


def _where(condition: Any, yes: Any, no: Any) -> Any:
    return _tile(np.where(condition, yes, no)) if np.ndim(condition) else yes if condition else no


def _load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
    if np.ndim(pointer.offset) == 0:
        return pointer.array[pointer.offset] if mask else other
    places, is_there = np.broadcast_arrays(pointer.offset, mask)
    values = np.full(places.shape, other, pointer.array.dtype)
    values[is_there] = pointer.array[places[is_there]]
    return _tile(values)


def _inline_asm(_code: str, _constraints: str, arguments: Sequence[Any], **_options: Any) -> Any:
    """Compute the only thing that kernels use it for: a sigmoid."""
    return _tile(1 / (1 + np.exp(-arguments[0])))


def _store(pointer: Pointer, values: Any, mask: Any = True) -> None:
    places, is_there, values = np.broadcast_arrays(pointer.offset, mask, values)
    pointer.array[places[is_there]] = values[is_there]


def _atomic_add(pointer: Pointer, number: int, sem: str = "") -> int:  # noqa: ARG001
    old = int(pointer.array[pointer.offset])
    pointer.array[pointer.offset] = old + number
    return old


def _specialize(partitions: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], *_sizes: Any) -> None:
    failures: list[BaseException] = []

    def run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=partition, daemon=True) for partition in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _allocate(dtype: Any, shape: Sequence[int], layout: Any) -> Any:
    if layout == "barriers":
        return Barriers(shape[0])
    # What nobody has written yet shows.
    return Shared(np.full(shape, -77, dtype))


def _language(program: int, num_programs: int) -> SimpleNamespace:
    def no_layout(*_arguments: Any, **_options: Any) -> None:
        return None

    def as_it_is(values: Any, _layout: Any, **_options: Any) -> Any:
        return values

    return SimpleNamespace(
        float32=np.float32, int32=np.int32, int64=np.int64,
        BlockedLayout=no_layout, DotOperandLayout=no_layout, NVMMADistributedLayout=no_layout,
        SliceLayout=no_layout, SwizzledSharedLayout=no_layout, static_range=range,
        program_id=lambda _axis: program, num_programs=lambda _axis: num_programs, num_warps=lambda: 1,
        cdiv=lambda number, size: -(-number // size), minimum=np.minimum, maximum=np.maximum,
        where=_where, exp2=np.exp2, rsqrt=lambda values: 1 / np.sqrt(values), convert_layout=as_it_is,
        reshape=np.reshape, permute=np.transpose, split=lambda values: (values[..., 0], values[..., 1]),
        inline_asm_elementwise=_inline_asm, constexpr=None,
        max=lambda values, axis: values.max(axis), sum=lambda values, axis: values.sum(axis),
        full=lambda shape, number, dtype, layout: _tile(np.full(shape, number, dtype)),  # noqa: ARG005
        zeros=lambda shape, dtype, layout: _tile(np.zeros(shape, dtype)),  # noqa: ARG005
        arange=lambda start, end, layout: _tile(np.arange(start, end)),  # noqa: ARG005
        load=_load, store=_store, atomic_add=_atomic_add, warp_specialize=_specialize,
        allocate_shared_memory=_allocate,
    )  # fmt: skip


@contextmanager
def _patched(modules: Sequence[ModuleType], names: dict[str, Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            plain = {
                name: item.fn if isinstance(item, JITFunction) else item.value
                for name, item in vars(module).items()
                if isinstance(item, JITFunction | constexpr)
            }
            for name, item in (plain | {name: names[name] for name in names.keys() & vars(module)}).items():
                patch.setattr(module, name, item)
        yield


def run_emulated(modules: Sequence[ModuleType], *arguments: Any, num_programs: int, **constants: Any) -> None:
    """Run the kernel that the first module is named after; the others hold what it calls.

    Arrays are passed as pointers to their first number, descriptors as they are.
    """
    mbarrier = SimpleNamespace(
        MBarrierLayout=lambda: "barriers",
        init=lambda barrier, count: setattr(barrier, "count", int(count)),
        wait=lambda barrier, phase, pred=True: barrier.wait(phase) if pred else None,
        expect=lambda barrier, num_bytes: barrier.change(arrived=1, num_bytes=num_bytes),
        arrive=lambda barrier, count, pred=True: barrier.change(arrived=count, num_bytes=0) if pred else None,
    )
    given = [Pointer(item) if isinstance(item, np.ndarray) else item for item in arguments]
    for program in range(num_programs):
        names = {
            "gl": _language(program, num_programs),
            "mbarrier": mbarrier,
            "fence_async_shared": lambda: None,
            "tma": SimpleNamespace(
                async_copy_global_to_shared=_copy,
                async_copy_shared_to_global=_copy_back,
                store_wait=lambda _number: None,
            ),
            "warpgroup_mma": _product,
            "warpgroup_mma_wait": _wait_for_products,
        }
        with _patched(modules, names):
            kernel = getattr(modules[0], modules[0].__name__.rpartition(".")[2])
            kernel(*given, **constants)
