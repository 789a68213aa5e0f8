"""An applied step: its rows, with where each starts, and what it changed in the block table.

Knows nothing about how steps are applied. Nobody writes to the arrays.
"""

from dataclasses import dataclass

import numpy as np

from worker_svc.batch.decode_run import DecodeRun
from worker_svc.batch.step import BoolArray, Int32Array, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAppends:
    """Blocks that lanes got after their admission: each stands at (lane, column) of the block table."""

    lanes: Int64Array
    columns: Int64Array
    block_ids: Int32Array

    def __len__(self) -> int:
        return len(self.block_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of an applied step, in the engine's order, and what changed in the block table."""

    step_id: int
    lanes: Int64Array
    num_tokens: Int64Array
    starts: Int64Array
    """Absolute position of each row's first token."""
    samples: BoolArray
    num_tokens_total: int
    appends: BlockAppends
    run: DecodeRun | None = None
    """Where there are rows, and each computes one token and samples the next."""


_NO_INT64 = np.empty(0, np.int64)
NO_APPENDS = BlockAppends(lanes=_NO_INT64, columns=_NO_INT64, block_ids=np.empty(0, np.int32))


def no_rows(*, step_id: int, appends: BlockAppends) -> StepRows:
    """Make what is applied of a step that has no rows of its own."""
    return StepRows(
        step_id=step_id,
        lanes=_NO_INT64,
        num_tokens=_NO_INT64,
        starts=_NO_INT64,
        samples=np.empty(0, np.bool_),
        num_tokens_total=0,
        appends=appends,
    )
