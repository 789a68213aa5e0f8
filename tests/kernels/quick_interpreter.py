"""Takes out of Triton's interpreter what it does again and again: more than half of its time.

Values and results stay what they are: only searches, tables and types that come out the same each time
are kept. It reaches into Triton's own names, so it fails loudly with a Triton that has others. Knows
nothing about kernels.
"""

import inspect
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from triton.language import core
from triton.runtime import interpreter


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the interpreter until the monkeypatch is undone."""
    monkeypatch.setattr(interpreter, "_patch_builtin", _patch_builtin)
    monkeypatch.setattr(interpreter, "_get_np_dtype", _numpy_dtype)
    monkeypatch.setattr(core.block_type, "__init__", _init_block_type)
    monkeypatch.setattr(core.tensor, "__init__", _init_tensor)


@cache
def _names_of(package: Any) -> tuple[str, ...]:
    return tuple(name for name, member in inspect.getmembers(package) if core.is_builtin(member))


def _patch_builtin(package: Any, builder: Any, *scope: Any) -> None:
    """Find what is replaced in a package once, not in each launch and each call."""
    names = _names_of(package)
    if core.is_builtin(getattr(package, names[0])):  # else all are replaced already
        for name in names:
            interpreter._patch_attr(package, name, getattr(package, name), builder, *scope)


_numpy_dtype_of_scalar = cache(interpreter._get_np_dtype)


def _numpy_dtype(dtype: Any) -> Any:
    """Look a dtype up without making the whole table first."""
    scalar = dtype.scalar
    return np.dtype(np.uint64) if scalar.is_ptr() else _numpy_dtype_of_scalar(scalar)


@cache
def _block_shape(*sizes: int) -> tuple[Any, int, str]:
    shape = core.tuple(sizes)
    return shape, core.validate_block_shape(sizes), str(shape)


_block_init = core.block_type.__init__


def _init_block_type(block: Any, element_ty: Any, shape: Any) -> None:
    """Take shape and size from an equal block type's."""
    sizes = [getattr(size, "value", size) for size in shape] if isinstance(shape, list | core.tuple) else []
    if not sizes or not all(type(size) is int for size in sizes):
        _block_init(block, element_ty, shape)
        return
    block.element_ty = element_ty
    block.shape, block.numel, shape_name = _block_shape(*sizes)
    block.name = f"<{shape_name}, {element_ty}>"


@cache
def _tensor_shape(*sizes: int) -> tuple[Any, Any]:
    return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))


def _init_tensor(tensor: Any, handle: Any, type: Any) -> None:
    """Take shape and size from an equal tensor's."""
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    tensor.shape, tensor.numel = _tensor_shape(*(type.shape.values if type.is_block() else ()))
