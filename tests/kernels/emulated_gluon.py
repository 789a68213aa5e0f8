"""Runs Gluon kernels on a CPU, which has no interpreter for them: as plain Python over NumPy arrays.

A partition of a program is a thread, as is a program of a cluster; else programs come one after the other.
Products take place when they are waited for, not before, so that a buffer that is filled again too early
gives wrong numbers. A barrier that nobody completes fails. Knows just what the kernels here use.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from triton.experimental.gluon.language.nvidia.hopper.mbarrier import MBarrierLayout
from triton.language import constexpr
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from tests.kernels.emulated_memory import (
    GENEROUS_SECONDS,
    Barriers,
    Descriptor,
    Pointer,
    Shared,
    copy,
    copy_back,
    one_of,
    product,
    tile,
    wait_for_products,
)

__all__ = ["Descriptor", "Pointer", "call_emulated", "run_emulated"]


def _where(condition: Any, yes: Any, no: Any) -> Any:
    return tile(np.where(condition, yes, no)) if np.ndim(condition) else yes if condition else no


def _exp(values: Any) -> Any:
    with np.errstate(over="ignore"):  # of rows that nobody stores
        return np.exp(values)


def _load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
    if np.ndim(pointer.offset) == 0:
        return pointer.array[pointer.offset] if mask else other
    places, is_there = np.broadcast_arrays(pointer.offset, mask)
    values = np.full(places.shape, other, pointer.array.dtype)
    values[is_there] = pointer.array[places[is_there]]
    return tile(values)


def _inline_asm(code: str, _constraints: str, arguments: Sequence[Any], **_options: Any) -> Any:
    """Compute what kernels use it for: a sigmoid, or nothing, where memory is read ahead."""
    argument = arguments[0]
    if "prefetch" not in code:
        return tile(1 / (1 + np.exp(-argument)))
    assert (argument.offset >= 0).all()
    assert (argument.offset < argument.array.size).all()
    return None


def _store(pointer: Pointer, values: Any, mask: Any = True) -> None:
    places, is_there, values = np.broadcast_arrays(pointer.offset, mask, values)
    pointer.array[places[is_there]] = values[is_there]


def _atomic_add(pointer: Pointer, number: int, sem: str = "") -> int:  # noqa: ARG001
    old = int(pointer.array[pointer.offset])
    pointer.array[pointer.offset] = old + number
    return old


def _specialize(partitions: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], *_sizes: Any) -> None:
    """Run each in a thread of its own."""
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
    if layout == "barriers" or isinstance(layout, MBarrierLayout):
        return Barriers(shape[0])
    # What nobody has written yet shows.
    return Shared(np.full(shape, -77, dtype))


def _language(program: int, num_programs: int) -> SimpleNamespace:
    def no_layout(*_arguments: Any, **_options: Any) -> None:
        return None

    def as_it_is(values: Any, _layout: Any, **_options: Any) -> Any:
        return values

    return SimpleNamespace(
        float32=np.float32, int32=np.int32, int64=np.int64, uint32=np.uint32, uint64=np.uint64,
        BlockedLayout=no_layout, DotOperandLayout=no_layout, NVMMADistributedLayout=no_layout,
        SliceLayout=no_layout, SwizzledSharedLayout=no_layout, static_range=range,
        program_id=lambda _axis: program, num_programs=lambda _axis: num_programs, num_warps=lambda: 1,
        cdiv=lambda number, size: -(-number // size), minimum=np.minimum, maximum=np.maximum,
        where=_where, exp2=np.exp2, rsqrt=lambda values: 1 / np.sqrt(values), convert_layout=as_it_is,
        reshape=np.reshape, permute=np.transpose, split=lambda values: (values[..., 0], values[..., 1]),
        inline_asm_elementwise=_inline_asm, constexpr=None,
        max=lambda values, axis: values.max(axis), min=lambda values, axis: values.min(axis),
        sum=lambda values, axis: values.sum(axis), log2=np.log2,
        full=lambda shape, number, dtype, layout: tile(np.full(shape, number, dtype)),  # noqa: ARG005
        zeros=lambda shape, dtype, layout: tile(np.zeros(shape, dtype)),  # noqa: ARG005
        arange=lambda start, end, layout: tile(np.arange(start, end)),  # noqa: ARG005
        abs=np.abs, load=_load, store=_store, atomic_add=_atomic_add,
        warp_specialize=_specialize, allocate_shared_memory=_allocate, tuple=tuple, exp=_exp,
        join=lambda low, high: np.stack((low, high), -1),
    )  # fmt: skip


@contextmanager
def _patched(modules: Sequence[ModuleType], names: dict[str, Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            plain = {
                name: item.value if isinstance(item, constexpr) else item.fn
                for name, item in vars(module).items()
                if isinstance(item, JITFunction | InterpretedFunction | constexpr)
            }
            for name, item in (plain | {name: names[name] for name in names.keys() & vars(module)}).items():
                patch.setattr(module, name, item)
        yield


class _Cluster:
    """Programs that run at once."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.products: list[Any] = [None] * size
        self.own = threading.local()

    def run(self, kernel: Callable[..., None], given: Sequence[Any], constants: dict[str, Any]) -> None:
        """Run the kernel in all of them."""

        def run_one(rank: int) -> None:
            self.own.rank = rank
            kernel(*given, **constants)

        _specialize([(run_one, (rank,)) for rank in range(self.size)])

    def sum(self, product: Any, rank: int, size: int, _layout: Any, _is_turned: bool) -> Any:
        """Add up what they hold: here each gets the sums of all rows."""
        assert size == self.size
        self.products[rank] = product
        self.barrier.wait(GENEROUS_SECONDS)
        return sum(self.products[1:], self.products[0])


def _nothing() -> None:
    pass


def _names(
    program: int, num_programs: int, cluster: _Cluster, end_front: Callable[[], None] = _nothing
) -> dict[str, Any]:
    mbarrier = SimpleNamespace(
        MBarrierLayout=lambda: "barriers",
        init=lambda barrier, count: setattr(one_of(barrier), "count", count),
        wait=lambda barrier, phase, pred=True: one_of(barrier).wait(phase) if pred else None,
        expect=lambda barrier, num_bytes: one_of(barrier).change(arrived=1, num_bytes=num_bytes),
        arrive=lambda barrier, count, pred=True: one_of(barrier).change(arrived=count) if pred else None,
    )
    return {
        "cluster_rank": lambda: cluster.own.rank,
        "begin_sums": lambda *_: None,
        "sum_over_cluster": cluster.sum,
        "gl": _language(program, num_programs),
        "tl": _language(program, num_programs),
        "mbarrier": mbarrier,
        "fence_async_shared": _nothing,
        "gdc_wait": end_front,
        "gdc_launch_dependents": _nothing,
        "tma": SimpleNamespace(
            async_copy_global_to_shared=copy,
            async_copy_shared_to_global=copy_back,
            store_wait=lambda _number: None,
        ),
        "warpgroup_mma": product,
        "warpgroup_mma_wait": wait_for_products,
    }


def call_emulated(module: ModuleType, name: str, *arguments: Any) -> Any:
    """Return what a module's function returns in a program that is alone."""
    with _patched((module,), _names(0, 1, _Cluster(1))):
        return getattr(module, name)(*arguments)


def run_emulated(
    modules: Sequence[ModuleType],
    *arguments: Any,
    num_programs: int,
    cluster_size: int = 1,
    end_front: Callable[[], None] = _nothing,
    **constants: Any,
) -> None:
    """Run the kernel that the first module is named after; the others hold what it calls.

    Arrays are passed as pointers to their first number, descriptors as they are. end_front is called by each
    wait for the kernel in front.
    """
    given = [Pointer(item) if isinstance(item, np.ndarray) else item for item in arguments]
    for program in range(num_programs):
        cluster = _Cluster(cluster_size)
        with _patched(modules, _names(program, num_programs, cluster, end_front)):
            kernel = getattr(modules[0], modules[0].__name__.rpartition(".")[2])
            cluster.run(kernel, given, constants)
