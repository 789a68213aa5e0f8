"""When a step began and ended by the device's clock, told by kernels to the host's memory.

Events around a captured step would cost 3.1 us between two graphs on an H200; what kernels that run anyway
write costs nothing. Where a step begins, its begin is kept on the device. A step that tells nothing, since it
samples nothing, leaves there how long it took, by which the next one begins earlier: what the device waits
between both is not taken for work, as were hours where a prompt's first part was the last that was asked.
Knows nothing about what steps compute.

A step's told_2 is int64: the address of int32 memory of the host, 0 for none, and the begin of the step under
way in ns, 0 for none, or minus what steps took that told nothing. In front of that address are 16 bytes for
two int64: begin and end.
"""

import torch
import triton
import triton.language as tl

from kernels.interpreter import IS_INTERPRETED

INTERPRETED_NS = tl.constexpr(1 << 40)


@triton.jit
def read_clock():
    """Return the device's clock in ns, never 0; in the interpreter, which has none, always the same."""
    if IS_INTERPRETED:
        now = tl.full((), INTERPRETED_NS, tl.int64)
    else:
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
    return now


@triton.jit
def tell_times(told_ptr, address, begin):
    """Write the step's begin, if it was not told yet, and now as its end in front of the address."""
    times_ptr = (address - 16).to(tl.pointer_type(tl.int64))
    if begin != 0:
        tl.store(times_ptr, begin)
        tl.store(told_ptr + 1, 0)
    tl.store(times_ptr + 1, read_clock())


@triton.jit
def mark_begin_kernel(told_ptr):
    """One program: a step's begin."""
    begin = tl.load(told_ptr + 1)
    tl.store(told_ptr + 1, read_clock() + begin, mask=begin <= 0)


@triton.jit
def mark_untold_end_kernel(told_ptr):
    """One program: the end of a step that tells nothing."""
    begin = tl.load(told_ptr + 1)
    tl.store(told_ptr + 1, begin - read_clock(), mask=begin > 0)


@triton.jit
def mark_end_kernel(told_ptr, tokens_ptr):
    """One program: a step's end."""
    address = tl.load(told_ptr) if tokens_ptr is None else tokens_ptr.to(tl.int64)
    if address != 0:
        tell_times(told_ptr, address, tl.load(told_ptr + 1))


def mark_begin(told_2: torch.Tensor) -> None:
    """Have the step begin now, unless it has; for steps whose own kernels do not tell."""
    mark_begin_kernel[(1,)](told_2, num_warps=1)


def mark_untold_end(told_2: torch.Tensor) -> None:
    """Have a step that tells nothing end now: what it took is the next one's."""
    mark_untold_end_kernel[(1,)](told_2, num_warps=1)


def mark_end(told_2: torch.Tensor, tokens_R: torch.Tensor | None = None) -> None:
    """Have the step end now, and tell its times: anew, if its own kernels have.

    Args:
        told_2: int64.
        tokens_R: int32, pinned memory of the host with 16 bytes of room in front; None: at told_2's address,
            and nothing where that is 0.
    """
    mark_end_kernel[(1,)](told_2, tokens_R, num_warps=1)
