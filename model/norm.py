"""Root-mean-square norm over the last dimension. Knows nothing about where it stands in a model."""

import torch
from torch import nn
from torch.nn.functional import rms_norm


class RmsNorm(nn.Module):
    """x / sqrt(mean(x**2) + eps) * weight, computed in float32."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized x, in its dtype."""
        return rms_norm(x, self.weight.shape, self.weight, self.eps)
