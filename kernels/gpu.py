"""What launchers ask the device they launch on. Needs no Triton; knows nothing about kernels."""

from functools import cache

import torch

HOPPER = (9, 0)
"""The compute capability of an H100 or H200."""


@cache
def compute_capability(device: torch.device) -> tuple[int, int]:
    """Tell which generation a GPU is of; no other device is of any: (0, 0)."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Tell how many programs a GPU can run each on a multiprocessor of its own."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
