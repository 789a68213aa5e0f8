"""Measures what launches take of a GPU's energy, one after the other for a while, by NVML's counter.

Where a card's power bounds a step, a launch that takes less of it leaves the others a higher clock. Knows
nothing about any kernel.
"""

import ctypes
import time
from collections.abc import Sequence

import torch

from benchmarks.gpu_timing import Launch, capture

SECONDS = 0.7
"""Of each measurement: the counter moves every 100 ms or so."""


def graph_millijoules(launches: Sequence[Launch], *, seconds: float = SECONDS) -> float:
    """Return the energy of one launch, the card's idle power included, once it is as warm as it gets.

    Args:
        launches: over inputs that differ, so that the cache does not help.
        seconds: how long to measure, after a third of that.

    Raises:
        OSError: NVML is not there, or this card does not count.
    """
    graph = capture(launches)
    num_replays = max(1, int(seconds / _replay(graph, 1)))
    _replay(graph, num_replays // 3 + 1)
    before = read_millijoules()
    _replay(graph, num_replays)
    return (read_millijoules() - before) / num_replays / len(launches)


def _replay(graph: torch.cuda.CUDAGraph, number: int) -> float:
    """Return the seconds that so many replays take."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        graph.replay()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def read_millijoules() -> int:
    """Return what the current card has taken since its driver was loaded.

    Raises:
        OSError: NVML is not there, or this card does not count.
    """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
    number = torch.cuda.current_device()  # NVML's own, too, as long as no card is hidden
    for code in (
        nvml.nvmlInit_v2(),
        nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)),
        nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)),
    ):
        if code:
            raise OSError(f"NVML answers {code}")
    return energy.value
