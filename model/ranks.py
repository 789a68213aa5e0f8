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

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, contiguous, of at least one dimension, of every rank, in a new first dimension."""


class OneRank:
    """Ranks of a model that lies on one device."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor, squares: torch.Tensor | None = None) -> bool:  # noqa: ARG002
        """Leave x: it is the sum."""
        return False

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x as the only one."""
        return x[None]
