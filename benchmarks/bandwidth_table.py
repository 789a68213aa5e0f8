"""What the benchmarks of memory-bound kernels share: input sets in rotation, one line a case.

Knows nothing about any kernel.
"""

MIN_BYTES = 256 << 20
"""Moved between two launches over the same inputs: five times an H200's L2."""
MAX_SETS = 64


def num_input_sets(num_bytes: int) -> int:
    """Return how many input sets of this size keep the cache from helping; few for large ones."""
    return max(1, min(MIN_BYTES // num_bytes + 1, MAX_SETS))


def tell_header(ceiling: float, card: str) -> None:
    """Print what the figures belong to, and the columns."""
    print(f"{card}; copy bandwidth {ceiling:.0f} GB/s")
    print(f"{'case':34s}       µs     GB/s  share%  early µs")


def tell(
    case: str, microseconds: float, *, num_bytes: int, ceiling: float, early: float | None = None
) -> None:
    """Print one line: launches after each other, and launches that start early, where there are any."""
    rate = num_bytes / microseconds / 1e3
    told_early = "-" if early is None else f"{early:.2f}"
    print(
        f"{case:34s} {microseconds:8.2f} {rate:8.0f} {100 * rate / ceiling:7.1f} {told_early:>9s}", flush=True
    )
