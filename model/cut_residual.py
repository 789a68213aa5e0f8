"""The residual of a step so large that each rank sums up rows of its own, while others' rows travel.

    rank 0 computes:  part of rows 1 | part of rows 0 | sums of rows 0 | next of rows 0 | next of rows 1
    meanwhile travel:                | part of rows 1 |                | sums of both   |

Knows nothing about what parts are of, nor how they travel.
"""

from collections.abc import Callable, Iterator

import torch

from model.ranks import Ranks, SharedRows
from model.row_cut import cut_rows

ALL_ROWS = slice(None)


class CutResidual:
    """The rows of one step. What is queued follows the order of the calls."""

    def __init__(self, shared: SharedRows, cut: tuple[slice, ...], *, rank: int) -> None:
        self._shared = shared
        self._own = cut[rank]
        size = len(cut)
        self._others = [(other % size, cut[other % size]) for other in range(rank + 1, rank + size)]
        """Each rank begins with the one behind it, so that they do not all write to one."""
        self._are_arriving = False

    @classmethod
    def of(cls, shared: SharedRows | None, num_rows: int, ranks: Ranks) -> "CutResidual | None":
        """Return that of a step of so many rows, if it is cut."""
        if shared is None:
            return None
        cut = cut_rows(num_rows, shared.rows_TE[0].nbytes, num_ranks=ranks.size)
        return cls(shared, cut, rank=ranks.rank) if cut else None

    def add(self, make_part: Callable[[slice], torch.Tensor]) -> None:
        """Add all ranks' parts of all rows, none of which are arriving.

        Args:
            make_part: Queues what computes this rank's part of some rows; it must stay until they are there.
        """
        assert not self._are_arriving, "nobody has waited for other ranks' rows"
        for owner, rows in self._others:
            self._shared.leave(make_part(rows), owner=owner)
        self._shared.add(make_part(self._own), self._own)
        self._are_arriving = True

    def arriving(self) -> Iterator[slice]:
        """Give all rows, as they are there for what is queued next: this rank's, then the others'."""
        if not self._are_arriving:
            yield ALL_ROWS
            return
        self._are_arriving = False
        yield self._own
        for owner, rows in self._others:
            self._shared.await_sums(owner)
            yield rows
