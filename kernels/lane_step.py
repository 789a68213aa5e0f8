"""A step whose rows find their blocks by lane, and what attention kernels read of it.

Knows nothing about kernels, layers or requests.

Shapes: B rows, L lanes, M blocks a table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.prefill_tiles import PrefillTiles

if TYPE_CHECKING:
    from kernels.attention_backend import StepMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRows:
    """Rows after the decode rows: any number of tokens each."""

    cu_seqlens_q: torch.Tensor
    """int32: where each row's tokens begin among all of the step's; one more than rows."""
    max_seqlen_q: int
    """No row computes more tokens."""
    tiles: tuple[PrefillTiles, ...] = ()
    """A launch each, all rows in one of them, for backends that want them. One that is given none makes them,
    which waits for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStep:
    """Rows of one token first, then the others. All tensors may stay where they are over many steps."""

    block_table_LM: torch.Tensor
    """int32: each lane's block ids in order; columns past its context are never read."""
    lanes_B: torch.Tensor
    """int32: each row's lane; -1 is padding, among the decode rows only."""
    seq_lens_B: torch.Tensor
    """int32: each row's context length after this step; 0 is padding, too."""
    num_decode_rows: int
    order_B: torch.Tensor | None = None
    """int32: the decode rows, longest context first; a hint, for the longest to start before the others."""
    prefill: PrefillRows | None = None
    """None where all rows are decode rows."""


def lane_step_of(step: "StepMetadata") -> LaneStep:
    """Return the same step, its rows in the place of lanes."""
    num_rows, num_decode_rows = len(step.query_lens), step.num_decode_rows
    prefill = None
    if num_decode_rows < num_rows:
        prefill = PrefillRows(
            cu_seqlens_q=step.cu_seqlens_q[num_decode_rows:],
            max_seqlen_q=max(step.query_lens[num_decode_rows:]),
        )
    return LaneStep(
        block_table_LM=step.block_table_BM,
        lanes_B=torch.arange(num_rows, dtype=torch.int32, device=step.block_table_BM.device),
        seq_lens_B=step.seq_lens_B,
        num_decode_rows=num_decode_rows,
        prefill=prefill,
    )
