"""Arrays of a batch to tensors on the device.

Knows nothing about what they mean.
"""

from typing import Any

import numpy.typing as npt
import torch


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device; a CPU shares its memory, so nobody may write to it."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
