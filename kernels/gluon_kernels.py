"""The kernels written in Gluon, where this Triton has it, and which devices run them.

Whoever launches one asks runs_gluon first: without Gluon all of them are None. Knows nothing about what
they compute.
"""

from functools import cache
from typing import Any

import torch
import triton

from kernels.gpu import HOPPER, compute_capability

try:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper.mbarrier import MBarrierLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from kernels.hopper_decode_kernel import hopper_decode_kernel
    from kernels.hopper_heads_kernel import hopper_heads_kernel
    from kernels.hopper_prefill_kernel import hopper_prefill_kernel
    from kernels.hopper_projection_kernel import hopper_projection_kernel
    from kernels.large_gate_kernel import large_gate_kernel
    from kernels.large_head_kernel import large_head_kernel
    from kernels.large_qkv_kernel import large_qkv_kernel
except ImportError:  # a Triton without Gluon, or with another one
    gl = MBarrierLayout = TensorDescriptor = None
    hopper_decode_kernel = hopper_heads_kernel = hopper_prefill_kernel = hopper_projection_kernel = None
    large_gate_kernel = large_head_kernel = large_qkv_kernel = None

__all__ = [
    "MBarrierLayout", "TensorDescriptor", "describe_tiles", "gl", "hopper_decode_kernel",
    "hopper_heads_kernel", "hopper_prefill_kernel", "hopper_projection_kernel", "large_gate_kernel",
    "large_head_kernel", "large_qkv_kernel", "runs_gluon", "tile_layout",
]  # fmt: skip


@cache
def runs_gluon(device: torch.device) -> bool:
    """Whether this device runs these kernels: a Hopper GPU, as they name its instructions."""
    if gl is None or triton.knobs.runtime.interpret:
        return False
    return compute_capability(device) == HOPPER


def describe_tiles(numbers: torch.Tensor, *block: int) -> Any:
    """Return what the copy engine reads or writes blocks of such a shape by."""
    return TensorDescriptor.from_tensor(numbers, list(block), tile_layout(block, numbers.dtype))


@cache
def tile_layout(block: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Return how such a block lies in shared memory; kept, as choosing takes the host 12 us a block."""
    number = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[dtype]
    return gl.NVMMASharedLayout.get_default_for(list(block), number)
