"""Linear layers on CPUs, with weights put once into the orders that run fastest.

Plain ``F.linear`` reorders the weight at every call of several rows. SmolLM2-135M's layers and head,
float32, one thread of a Sapphire Rapids core, in ms by number of rows:

    rows                  1     2     8    32
    F.linear             40    46   114   129
    transposed, mm       39    48    93   106
    oneDNN's own order   45    48    63   106

So one row reads a transposed copy, more rows read oneDNN's. bfloat16 is fastest in oneDNN's for any
number of rows. Knows nothing about models.

Shapes: R rows, I inputs, O outputs.
"""

from dataclasses import dataclass
from typing import cast

import torch

PACKING_ROWS = 8
"""The batch that oneDNN chooses its order for; other batches run as well, but a hint of 1 slows them."""
PACKED_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight in one or two orders."""

    blocked: torch.Tensor
    """oneDNN's own order: opaque."""
    transposed_IO: torch.Tensor | None
    """For one row."""


def can_pack(weight_OI: torch.Tensor) -> bool:
    """Whether this build of PyTorch can pack the weight."""
    return (
        weight_OI.device.type == "cpu"
        and weight_OI.dtype in PACKED_DTYPES
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack_weight(weight_OI: torch.Tensor, *, may_hold_twice: bool) -> PackedWeight:
    """Return the weight in the orders that linear_packed reads.

    Args:
        weight_OI: of a dtype and device that can_pack accepts; left as it is.
        may_hold_twice: take twice the memory where that is faster.
    """
    is_faster_twice = weight_OI.dtype == torch.float32
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight_OI, PACKING_ROWS)
    transposed_IO = weight_OI.t().contiguous() if may_hold_twice and is_faster_twice else None
    return PackedWeight(blocked=blocked, transposed_IO=transposed_IO)


def linear_packed(x_RI: torch.Tensor, weight: PackedWeight, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return x @ weight.T + bias, as F.linear does."""
    if len(x_RI) == 1 and weight.transposed_IO is not None:
        if bias_O is None:
            return torch.mm(x_RI, weight.transposed_IO)
        return torch.addmm(bias_O, x_RI, weight.transposed_IO)
    output_RO = torch.ops.mkldnn._linear_pointwise(x_RI, weight.blocked, bias_O, "none", [], "")
    return cast(torch.Tensor, output_RO)
