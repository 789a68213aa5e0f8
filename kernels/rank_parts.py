"""Sums rows up out of a rank's own part and those that other ranks have left in its memory.

Who leaves something raises a flag behind it: await_flag, a launch of one thread, waits until a flag is up
and takes it down; what is launched behind it may read. Knows nothing about how parts and flags get there.

Shapes: R rows, E hidden, N ranks.
"""

import torch
import triton
import triton.language as tl

BLOCK = 2048
NUM_WARPS = 8


@triton.jit
def await_flag_kernel(flag_ptr):
    """One program."""
    was_up = tl.atomic_cas(flag_ptr, 1, 0, sem="acquire", scope="sys")
    while was_up == 0:
        was_up = tl.atomic_cas(flag_ptr, 1, 0, sem="acquire", scope="sys")


def await_flag(flag: torch.Tensor) -> None:
    """Wait until a flag is 1, and make it 0. In Triton's interpreter it must be.

    Args:
        flag: int32, one number.
    """
    assert flag.dtype == torch.int32
    assert flag.numel() == 1
    await_flag_kernel[(1,)](flag, num_warps=1)


@triton.jit
def add_parts_kernel(
    rows_ptr,
    own_ptr,
    came_ptr,
    came_stride,
    num_numbers,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_in = at < num_numbers
    total = tl.load(rows_ptr + at, mask=is_in, other=0.0).to(tl.float32)
    for rank in tl.static_range(SIZE):
        part_at = own_ptr + at if rank == RANK else came_ptr + (rank - (rank > RANK)) * came_stride + at
        total += tl.load(part_at, mask=is_in, other=0.0).to(tl.float32)
    tl.store(rows_ptr + at, total.to(rows_ptr.dtype.element_ty), mask=is_in)


def add_parts(rows_RE: torch.Tensor, own_RE: torch.Tensor, came_NRE: torch.Tensor, *, rank: int) -> None:
    """Add all ranks' parts to the rows, in the ranks' order, rounded once: as all_reduce to a residual.

    Args:
        rows_RE: contiguous, as own_RE and each of came_NRE, and of one dtype.
        own_RE: this rank's.
        came_NRE: the other ranks', in their order.
        rank: this one.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    for name, part in (("own", own_RE[None]), ("came", came_NRE)):
        if part.shape[1:] != rows_RE.shape or part.dtype != rows_RE.dtype or not part[0].is_contiguous():
            raise ValueError(f"{name} is {part.dtype} of {tuple(part.shape)}, rows of {tuple(rows_RE.shape)}")
    add_parts_kernel[(triton.cdiv(rows_RE.numel(), BLOCK),)](
        rows_RE,
        own_RE,
        came_NRE,
        came_NRE.stride(0),
        rows_RE.numel(),
        RANK=rank,
        SIZE=len(came_NRE) + 1,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )


def add_parts_ref(
    rows_RE: torch.Tensor, own_RE: torch.Tensor, came_NRE: torch.Tensor, *, rank: int
) -> torch.Tensor:
    """Return what add_parts leaves in the rows, in plain PyTorch."""
    total_RE = rows_RE.float()
    for part_RE in (*came_NRE[:rank], own_RE, *came_NRE[rank:]):
        total_RE = total_RE + part_RE.float()
    return total_RE.to(rows_RE.dtype)
