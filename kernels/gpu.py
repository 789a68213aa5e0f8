"""What launchers ask the device they launch on. Needs no Triton; knows nothing about kernels."""

from functools import cache
from typing import Any

import torch

HOPPER = (9, 0)
"""The compute capability of an H100 or H200."""
HOPPER_SHARED_BYTES = 227 << 10
LEAST_SHARED_BYTES = 99 << 10
"""What compute capabilities 8.6, 8.9 and 12.0 have, and all that attention and the sampler need."""
BARRIER_BYTES = 1 << 10
"""More than what the barriers of a pipeline take."""


@cache
def compute_capability(device: torch.device) -> tuple[int, int]:
    """Tell which generation a GPU is of; no other device is of any: (0, 0)."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def shared_bytes(device: torch.device) -> int:
    """Tell how much shared memory a program can have; where kernels are interpreted, as on a Hopper GPU."""
    if device.type != "cuda":
        return HOPPER_SHARED_BYTES
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs do not know of this one
    return int(properties.shared_memory_per_block_optin)


def most_stages(device: torch.device, *, stage_bytes: int, other_bytes: int = 0) -> int:
    """Tell how many stages of a pipeline a program has room for, beside what else it keeps there."""
    return (shared_bytes(device) - other_bytes - BARRIER_BYTES) // stage_bytes


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Tell how many programs a GPU can run each on a multiprocessor of its own."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
