"""Decides which steps are so large that each rank sums up rows of its own, and which rows those are.

Knows nothing about how rows get from rank to rank.
"""

LEAST_ROWS = 8193
"""Steps that are captured are never cut, as those of decodes."""
LEAST_BYTES = 64 << 20
"""Of all rows. 128 MiB gain 8 %, 32 MiB lose: there the host, which launches more, is what takes the time."""
UNIT = 128
"""Rows of a product's tile."""


def cut_rows(num_rows: int, row_bytes: int, *, num_ranks: int) -> tuple[slice, ...]:
    """Return the rows of each rank, which cover all; none where all ranks sum up all rows at once."""
    if num_ranks == 1 or num_rows < LEAST_ROWS or num_rows * row_bytes < LEAST_BYTES:
        return ()
    share = most_rows_of_one(num_rows, num_ranks)
    return tuple(
        slice(min(rank * share, num_rows), min((rank + 1) * share, num_rows)) for rank in range(num_ranks)
    )


def most_rows_of_one(num_rows: int, num_ranks: int) -> int:
    """Return how many rows one rank has at most, in steps of up to so many."""
    return -(-num_rows // (num_ranks * UNIT)) * UNIT
