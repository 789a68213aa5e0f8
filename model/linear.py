"""Linear layers, some of them several projections of one input fused into one.

A column-parallel layer, merged or not, is a Linear of the share's outputs: ranks need no word about it. Knows
nothing about where weights come from, nor who holds which. Shapes: T rows, I inputs, O outputs.
"""

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.cpu_linear import PackedWeight, can_pack, linear_packed, pack_weight
from model.ranks import Ranks


class Linear(nn.Module):
    """x @ weight.T + bias."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, num_inputs: int, num_outputs: int, *, has_bias: bool = False, dtype: torch.dtype
    ) -> None:
        super().__init__()
        weight_OI = torch.empty(num_outputs, num_inputs, dtype=dtype)
        self.weight = nn.Parameter(weight_OI, requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(num_outputs, dtype=dtype), requires_grad=False) if has_bias else None
        )
        self.packed: PackedWeight | None = None

    def pack(self, *, may_hold_twice: bool) -> None:
        """Put the loaded weight into the orders that run fastest, and drop the plain one."""
        if self.weight is not None and can_pack(self.weight):
            self.packed = pack_weight(self.weight, may_hold_twice=may_hold_twice)
            self.weight = None

    def forward(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        if self.packed is not None:
            return linear_packed(x_TI, self.packed, self.bias)
        assert self.weight is not None
        return linear(x_TI, self.weight, self.bias)


class RowParallelLinear(Linear):
    """x @ weight.T + bias of inputs that lie on several ranks, each with its columns of the weight.

    The bias lies on the first rank; on the others it is zeros.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, *, ranks: Ranks, has_bias: bool = False, dtype: torch.dtype
    ) -> None:
        super().__init__(num_inputs, num_outputs, has_bias=has_bias, dtype=dtype)
        self.ranks = ranks

    def forward(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks, on each of them."""
        output_TO = super().forward(x_TI)
        self.ranks.all_reduce(output_TO)
        return output_TO
