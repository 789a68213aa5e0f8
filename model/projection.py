"""One projection of a fused forward pass: its weight as it lies, and which kernels compute it.

Knows nothing about what stands around it.

Shapes: T rows, I inputs, O outputs.
"""

import sys
from dataclasses import dataclass
from enum import Enum

import torch

from kernels.gpu import shared_bytes
from kernels.hopper_projection import can_hold
from kernels.large_projection import can_project
from kernels.small_batch import can_fuse
from kernels.streamed_projection import can_stream
from kernels.tiled_config import MOST_ROWS_OF_LARGE, is_large_weight
from model.linear import Linear


class Way(Enum):
    """Which kernels compute a projection, and the norm, gate or sum around it."""

    FEW_ROWS = "few_rows"
    """kernels/small_batch.py, all in one launch."""
    TILED = "tiled"
    """kernels/tiled_projection.py, all in one launch."""
    STREAMED = "streamed"
    """kernels/streamed_projection.py, and a launch for the norm in front."""
    CUBLAS = "cublas"
    """cuBLAS, and a launch for each of the others."""
    LARGE = "large"
    """kernels/large_projection.py, all in one launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MostRows:
    """Up to how many rows each way is the fastest, where the kernels take so many of a weight of its size."""

    few_rows: int
    tiled: int
    few_rows_of_large: int = sys.maxsize
    """Of a large weight, if it is fewer."""
    few_rows_beside_held: int = sys.maxsize
    """Where kernels/hopper_projection.py can compute the rest, if it is fewer."""
    streamed: int = 0
    """Of a weight with many outputs."""
    cublas: int = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """x @ weight.T + bias, into memory that is given."""

    weight_OI: torch.Tensor
    weight_IO: torch.Tensor
    """The same, transposed: a view."""
    bias_O: torch.Tensor | None
    has_norm: bool
    """Whether the weight of the norm in front is in this weight."""
    fits_large: bool = False
    """Whether kernels/large_projection.py can compute it."""
    fits_held: bool = False
    """Whether tiled_projection.py leaves it to hopper_projection.py, which holds weights while it waits."""

    @property
    def can_scale_after(self) -> bool:
        """Whether the norm in front may be left to who reads the outputs, as a factor of each row.

        What is projected are the rows as they are, of any size: bfloat16 has float32's range and rounds by
        the size of a number, float16 may overflow, and a bias knows nothing of a factor.
        """
        return self.has_norm and self.bias_O is None and self.weight_OI.dtype == torch.bfloat16

    def way(self, num_rows: int, most_rows: MostRows) -> Way:
        """Return how so many rows are computed."""
        is_large = is_large_weight(*self.weight_OI.shape)
        most_few = min(most_rows.few_rows, most_rows.few_rows_of_large) if is_large else most_rows.few_rows
        most_few = min(most_few, most_rows.few_rows_beside_held) if self.fits_held else most_few
        if num_rows <= most_few and can_fuse(
            num_rows,
            *self.weight_OI.shape,
            itemsize_bytes=self.weight_OI.element_size(),
            most_bytes=shared_bytes(self.weight_OI.device),
        ):
            return Way.FEW_ROWS
        if num_rows <= most_rows.streamed and self.bias_O is None and can_stream(self.weight_OI, num_rows):
            return Way.STREAMED
        most_tiled = min(most_rows.tiled, MOST_ROWS_OF_LARGE) if is_large else most_rows.tiled
        if num_rows <= most_tiled:
            return Way.TILED
        return Way.LARGE if self.fits_large and num_rows > most_rows.cublas else Way.CUBLAS

    def __call__(self, x_TI: torch.Tensor, out_TO: torch.Tensor) -> None:
        """Compute it by cuBLAS."""
        if self.bias_O is None:
            torch.mm(x_TI, self.weight_IO, out=out_TO)
        else:
            torch.addmm(self.bias_O, x_TI, self.weight_IO, out=out_TO)


def make_projection(
    module: Linear, *, norm_I: torch.Tensor | None = None, is_gated: bool = False
) -> Projection:
    """Take a layer's weight as it lies.

    Args:
        module: loaded.
        norm_I: the weight of the norm in front, which is moved into the layer's: both change in place,
            and norm and projection together stay what they were.
        is_gated: whether its outputs are gates and ups.
    """
    assert module.weight is not None, "a packed weight is for CPUs"
    if norm_I is not None:
        module.weight.copy_(module.weight.float() * norm_I.float())
        norm_I.fill_(1.0)
    return Projection(
        weight_OI=module.weight,
        weight_IO=module.weight.t(),
        bias_O=module.bias,
        has_norm=norm_I is not None,
        fits_large=module.bias is None and can_project(module.weight),
        fits_held=module.bias is None and can_hold(module.weight, is_gated=is_gated),
    )
