"""What one rank of a tensor-parallel model needs of the others: sums and gathers of tensors.

Knows nothing about how ranks reach each other, nor which of them holds what: model/share.py does.
"""

from typing import Protocol

import torch


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

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x as the only one."""
        return x[None]
