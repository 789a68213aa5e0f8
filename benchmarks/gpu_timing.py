"""Times GPU launches as a captured graph runs them, and measures the card's own ceilings.

Knows nothing about any kernel.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch

Launch = Callable[[], object]
CEILING_BYTES = 2 << 30


def graph_microseconds(launches: Sequence[Launch], *, num_replays: int = 9) -> float:
    """Return the median time of one launch: all are captured in one graph, which is replayed.

    Args:
        launches: over inputs that differ, so that the cache does not help; launched once before.
        num_replays: how often to time the graph.
    """
    graph = capture(launches)
    graph.replay()
    return median(_milliseconds(graph) for _ in range(num_replays)) * 1000 / len(launches)


def capture(launches: Sequence[Launch]) -> torch.cuda.CUDAGraph:
    """Return a graph of them all, each launched once before."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


def _milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def read_bandwidth() -> float:
    """Return GB/s of reading device memory: the sum of a large tensor."""
    source = torch.empty(CEILING_BYTES // 8, dtype=torch.int64, device="cuda").random_()
    return CEILING_BYTES / graph_microseconds([source.sum]) / 1e3


def copy_bandwidth() -> float:
    """Return GB/s of copying device memory by a kernel, bytes read and bytes written together.

    Not by copy_, which a graph leaves to a copy engine: 2,740 GB/s on an H200 (copied by kernels: 4,240).
    """
    source = torch.empty(CEILING_BYTES // 8, dtype=torch.int64, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * CEILING_BYTES / graph_microseconds([lambda: torch.neg(source, out=target)]) / 1e3


def matmul_ceiling() -> float:
    """Return TFLOP/s of a large bfloat16 matrix product by cuBLAS."""
    left, right = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    out = torch.empty_like(left)
    return 2 * 8192**3 / graph_microseconds([lambda: torch.mm(left, right, out=out)]) / 1e6


def describe_card() -> str:
    """Return the card and the versions that the figures belong to."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
