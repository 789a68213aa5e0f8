"""How a tiled projection is cut into programs, and the memory in which they meet.

Chosen on the host by what a captured graph fixes: rows and the weight's shape. Knows nothing about
what the kernel computes.

Shapes: X numbers in a flat buffer.
"""

from dataclasses import dataclass

import torch

MAX_TILES = 4096
"""Of a launch whose inputs are split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionTile:
    """One launch's shape. Blocks are powers of two, at least 16."""

    block_rows: int
    block_outputs: int
    """If gated: of gates, and as many of ups."""
    block_inputs: int
    num_warps: int = 4
    num_stages: int = 4
    num_splits: int = 1
    """Programs that share the inputs of one tile."""
    is_swapped: bool = False
    """Outputs are the larger side of a tensor core's product, of 64, and rows the other one."""
    is_tma: bool = False
    """Tiles are copied by the copy engine."""
    is_read_ahead: bool = True
    """The cache is told which weights will be read before the kernel in front has ended."""
    is_early: bool = True
    """The next kernel may start as soon as all programs of this one have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionWorkspace:
    """Where programs leave what others need. Launches in stream order may share one."""

    partial_X: torch.Tensor
    """float32: the splits' sums."""
    counters_X: torch.Tensor
    """int32, all 0 between launches: the last split puts its own back."""


def make_projection_workspace(num_numbers: int, *, device: torch.device | str) -> ProjectionWorkspace:
    """Allocate a workspace for splits of so many numbers in all."""
    return ProjectionWorkspace(
        partial_X=torch.empty(num_numbers, dtype=torch.float32, device=device),
        counters_X=torch.zeros(MAX_TILES, dtype=torch.int32, device=device),
    )


def choose_projection_tile(num_outputs: int, num_inputs: int, *, num_rows: int) -> ProjectionTile:
    """Return the launch's shape."""
    block_rows = 32 if num_rows <= 32 else 64 if num_rows <= 64 else 128
    num_splits = 1 if num_outputs > 2048 else 4
    while num_splits > 1 and num_inputs < num_splits * 128:
        num_splits //= 2
    return ProjectionTile(
        block_rows=block_rows,
        block_outputs=32 if num_rows <= 64 else 64,
        block_inputs=64,
        num_warps=4 if num_rows <= 64 else 8,
        num_splits=num_splits,
    )
