"""Whether a device can still compute for this process.

Knows nothing about steps, nor what to do where it cannot.
"""

import torch


def check_device(device: torch.device) -> None:
    """Wait for all that the device was given.

    Some faults of a kernel, an illegal address for one, leave a CUDA context in which every later call
    fails the same way: only a new process can compute again.

    Raises:
        RuntimeError: if the device takes no more work of this process.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
