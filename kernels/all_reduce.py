"""Sums small messages between ranks whose GPUs write to each other's memory: one launch, no barrier.

Each program leaves its part of its rank's message in a box of every peer's mailbox, waits until the peers'
parts are in its own, adds up all of them in the order of the ranks, which gives all ranks the same bits, and
empties the boxes. A word of a box is there once it is not EMPTY, so nothing else is told or waited for.

Why a box is empty when a rank writes to it: the programs of one number, one on each rank, are a group of
their own; they count their turns where they run, so that a graph that is replayed counts, too, and all ranks
launch the same sums in the same order. A rank writes to its peers' boxes of turn t once its turn t - 1 has
ended: launches of a stream follow each other, and one that starts early waits before it reads anything but
constants. That turn took what each peer wrote in its turn t - 1, so each peer had ended its turn t - 2, and
emptied the boxes of it, before. So a peer's boxes of turns t - 1 and t may hold something, no others: two
sets by turns would do. There are three, so that a whole launch lies between emptying a box and writing there.
A rank that launches fewer sums than the others leaves them waiting, as NCCL's would; they have to be ended.

Knows nothing about how memory is shared, nor about models.
"""

from dataclasses import dataclass

import torch
import triton

from kernels.all_reduce_kernel import NUM_TURNS, all_reduce_kernel
from kernels.dependent_launch import can_depend, launch_options
from kernels.line_words import EMPTY_WORD
from kernels.row_squares import SQUARES_CHUNK, check_squares

DTYPES = (torch.bfloat16, torch.float32)
LINE_BYTES = 16
BOX_LINES = 256
"""The most that a program sums."""
BOX_BYTES = BOX_LINES * LINE_BYTES
MOST_SMALL_BYTES = 512 << 10
"""Of a message that is cut into half boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a message is cut into programs: the same on all ranks."""

    num_lines: int
    """Of a program; a power of two, at most BOX_LINES."""
    num_warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    """Where peers leave their messages for a rank, and where it leaves its own."""

    rank: int
    own_X: torch.Tensor
    """int32, of mailbox_words, that the peers map: (turn, program, from rank, line, word)."""
    addresses_N: torch.Tensor
    """int64: where every rank's lies, as this rank sees it."""
    turns_P: torch.Tensor
    """int32: each program's next, from 0 to NUM_TURNS - 1."""

    @property
    def num_programs(self) -> int:
        """The most of a launch."""
        return len(self.turns_P)

    @property
    def most_bytes(self) -> int:
        """Of a message."""
        return self.num_programs * BOX_BYTES


def mailbox_words(size: int, most_bytes: int) -> int:
    """Tell how many words a rank's mailbox holds, among so many ranks, for messages of whole boxes."""
    return NUM_TURNS * most_bytes // 4 * size


def make_mailbox(own_X: torch.Tensor, addresses: list[int], *, rank: int) -> Mailbox:
    """Empty a rank's mailbox. Nobody may write to it before it is empty on the device.

    Args:
        own_X: int32, of mailbox_words, aligned to lines.
        addresses: Every rank's, as this rank sees them.
        rank: This one.
    """
    own_X.fill_(EMPTY_WORD)
    num_programs = own_X.nbytes // (NUM_TURNS * len(addresses) * BOX_BYTES)
    return Mailbox(
        rank=rank,
        own_X=own_X,
        addresses_N=torch.tensor(addresses, dtype=torch.int64, device=own_X.device),
        turns_P=torch.zeros(num_programs, dtype=torch.int32, device=own_X.device),
    )


def can_sum(x: torch.Tensor) -> bool:
    """Whether all_reduce takes this tensor, where a mailbox holds it."""
    is_of_lines = x.nbytes % LINE_BYTES == 0 == x.data_ptr() % LINE_BYTES and x.is_contiguous()
    return x.dtype in DTYPES and is_of_lines and x.nbytes > 0


def all_reduce(
    x: torch.Tensor,
    mailbox: Mailbox,
    *,
    residual: torch.Tensor | None = None,
    squares_RJ: torch.Tensor | None = None,
    is_dependent: bool = False,
    cut: Cut | None = None,
) -> None:
    """Replace x by its sum over all ranks. The kernel behind the last launch may start early.

    Args:
        x: can_sum takes it. More than the mailbox's most_bytes are summed piece by piece.
        mailbox: This rank's.
        residual: The sum is added to this instead, as x, the same on all ranks; x stays. One rounding, where
            a residual that travelled as a part of one rank's x would be rounded there, too.
        squares_RJ: takes the sum's sum_squares; x is rows of whole chunks then.
        is_dependent: let it start while the kernel before it runs, where the device can.
        cut: instead of choose_cut's.
    """
    for piece, piece_residual, piece_squares_RJ in _pieces(x, residual, squares_RJ, mailbox.most_bytes):
        _launch(
            *(piece, mailbox, piece_residual, piece_squares_RJ),
            is_pushed=True,
            is_summed=True,
            is_dependent=is_dependent,
            cut=cut,
        )


def _pieces(
    x: torch.Tensor, residual: torch.Tensor | None, squares_RJ: torch.Tensor | None, most_bytes: int
) -> list[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]]:
    """Cut a message that no mailbox holds, and what belongs to it: where there are squares by whole rows."""
    if x.nbytes <= most_bytes:
        return [(x, residual, squares_RJ)]
    rows, step = (x.view(-1), most_bytes // x.itemsize)
    if squares_RJ is not None:
        rows, step = x, most_bytes * len(x) // x.nbytes
    return [
        (
            rows[first : first + step],
            None if residual is None else residual.view(rows.shape)[first : first + step],
            None if squares_RJ is None else squares_RJ[first : first + step],
        )
        for first in range(0, len(rows), step)
    ]


def push(x: torch.Tensor, mailbox: Mailbox, *, cut: Cut | None = None) -> None:
    """Do the first half of all_reduce: leave x with the peers."""
    _launch(x, mailbox, None, None, is_pushed=True, is_summed=False, is_dependent=False, cut=cut)


def take_sum(
    x: torch.Tensor,
    mailbox: Mailbox,
    *,
    residual: torch.Tensor | None = None,
    squares_RJ: torch.Tensor | None = None,
    cut: Cut | None = None,
) -> None:
    """Do the second half of all_reduce, once all ranks have pushed: it does not wait in the interpreter."""
    _launch(x, mailbox, residual, squares_RJ, is_pushed=False, is_summed=True, is_dependent=False, cut=cut)


def choose_cut(num_bytes: int) -> Cut:
    """Return small programs, so that many multiprocessors send; as fast as any between two H200."""
    if num_bytes <= MOST_SMALL_BYTES:
        return Cut(num_lines=128, num_warps=4)
    return Cut(num_lines=256, num_warps=8)


def _launch(
    x: torch.Tensor,
    mailbox: Mailbox,
    residual: torch.Tensor | None,
    squares_RJ: torch.Tensor | None,
    *,
    is_pushed: bool,
    is_summed: bool,
    is_dependent: bool,
    cut: Cut | None,
) -> None:
    cut, num_lines = cut or choose_cut(x.nbytes), x.nbytes // LINE_BYTES
    num_programs = triton.cdiv(num_lines, cut.num_lines)
    if not can_sum(x) or cut.num_lines > BOX_LINES or num_programs > mailbox.num_programs:
        raise ValueError(f"{x.nbytes} bytes of {x.dtype} are no message of whole lines that fits {cut}")
    if residual is not None and not (
        can_sum(residual) and (residual.shape, residual.dtype) == (x.shape, x.dtype)
    ):
        raise ValueError(f"a residual of {list(residual.shape)} is not one of messages {list(x.shape)}")
    if squares_RJ is not None:
        check_squares(squares_RJ, *x.shape)
        if x.shape[1] % SQUARES_CHUNK:
            raise ValueError(f"rows of {x.shape[1]} are not whole chunks of {SQUARES_CHUNK}")
    all_reduce_kernel[(num_programs,)](
        *(x, mailbox.addresses_N, mailbox.turns_P, residual, squares_RJ, num_lines),
        RANK=mailbox.rank,
        SIZE=len(mailbox.addresses_N),
        NUM_PROGRAMS=mailbox.num_programs,
        BOX_LINES=BOX_LINES,
        LINES=cut.num_lines,
        IS_PUSHED=is_pushed,
        IS_SUMMED=is_summed,
        HAS_PTX=not triton.knobs.runtime.interpret,
        num_warps=cut.num_warps,
        **launch_options(is_dependent and can_depend(x.device)),
    )


def all_reduce_ref(messages: list[torch.Tensor], residual: torch.Tensor | None = None) -> torch.Tensor:
    """Return what all_reduce leaves on every rank, in plain PyTorch."""
    first, *others = messages if residual is None else (residual, *messages)
    total = first.float()
    for message in others:
        total = total + message.float()
    return total.to(first.dtype)
