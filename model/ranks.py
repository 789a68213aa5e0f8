"""What one rank of a tensor-parallel model needs of the others: sums and gathers of tensors.

Knows nothing about how ranks reach each other, nor which of them holds what: model/share.py does.
"""

from typing import Protocol

import torch


class SharedRows(Protocol):
    """A residual whose rows all ranks have, each row summed up by one rank while others compute.

    For each sum a rank leaves its part of every other rank's rows, adds its own rows up, and awaits all
    others' sums before it computes their next part. In stream order, like all that ranks do.
    """

    rows_TE: torch.Tensor
    """They belong to ranks as row_cut.py cuts them."""

    def leave(self, part_RE: torch.Tensor, *, owner: int) -> None:
        """Copy this rank's part of another's rows to that one; it must stay until their sums are here."""

    def add(self, part_RE: torch.Tensor, rows: slice) -> None:
        """Add all ranks' parts to this rank's rows, in the ranks' order, and copy them to the others."""

    def await_sums(self, owner: int) -> None:
        """Have what is queued next wait for another rank's rows."""


class Ranks(Protocol):
    """The ranks that hold a model together, as one of them sees them.

    All ranks make the same calls in the same order, with tensors of the same shape and dtype. Calls
    take effect in stream order, so they can be captured in a CUDA graph.
    """

    @property
    def rank(self) -> int:
        """This rank, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:
        """Replace x, contiguous, by its sum over all ranks: the same bits on each of them.

        Args:
            x: This rank's summand.
            squares: Takes the sum's squares, as kernels/row_squares.py sums them, where it can.

        Returns:
            Whether it could, and the next kernel may start early (kernels/dependent_launch.py).
        """

    def is_short(self, x: torch.Tensor) -> bool:
        """Whether a residual like x stays out of the message, for add_sum is as fast."""

    def add_sum(
        self, x: torch.Tensor, residual: torch.Tensor, *, squares: torch.Tensor | None = None
    ) -> bool:
        """Add x's sum over all ranks to the residual, which is_short and the same on all; x may change.

        A residual in bfloat16 is rounded once, where all_reduce of a rank's residual plus x rounds twice.
        Squares and result as all_reduce's.
        """

    def share_rows(self, num_rows: int, num_hidden: int, *, like: torch.Tensor) -> SharedRows | None:
        """Allocate a residual of up to so many rows, of like's dtype and device, where steps are cut."""

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, contiguous, of at least one dimension, of every rank, in a new first dimension."""


class OneRank:
    """Ranks of a model that lies on one device."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:  # noqa: ARG002
        """Leave x: it is the sum."""
        return False

    def is_short(self, x: torch.Tensor) -> bool:  # noqa: ARG002
        """There are no messages."""
        return False

    def add_sum(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        *,
        squares: torch.Tensor | None = None,  # noqa: ARG002
    ) -> bool:
        """Add x."""
        residual.add_(x)
        return False

    def share_rows(self, num_rows: int, num_hidden: int, *, like: torch.Tensor) -> SharedRows | None:  # noqa: ARG002
        """There is nobody to share with."""
        return None

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x as the only one."""
        return x[None]
