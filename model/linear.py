"""Linear layers, some of them several projections of one input fused into one.

Knows nothing about where weights come from. Shapes: T rows, I inputs, O outputs.
"""

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.cpu_linear import PackedWeight, can_pack, linear_packed, pack_weight


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
