"""Projections of some dozens to hundreds of rows, fused with what stands around them, by tensor cores.

The same three operations as small_batch, without its limits: norm in front, gate or sum behind, one
launch each. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F: gate rows, then up rows, J sums
of squares of a row.
"""

from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.dependent_launch import can_depend, launch_options
from kernels.gluon_kernels import runs_gluon
from kernels.hopper_projection import hopper_projection
from kernels.hopper_tiles import HopperTile, choose_hopper_tile
from kernels.row_squares import SQUARES_CHUNK, check_squares, sum_squares
from kernels.rows_behind import with_rows_behind
from kernels.small_batch_ref import check_projection, num_gated
from kernels.tiled_config import (
    MAX_TILES,
    ProjectionTile,
    ProjectionWorkspace,
    choose_projection_tile,
    fit_stages,
    make_projection_workspace,
)
from kernels.tiled_projection_kernel import tiled_projection_kernel

__all__ = ["linear_add", "norm_gate_up_silu", "norm_linear"]

ALIGNMENT_BYTES = 16
"""Of rows, for the copy engine and for reading ahead."""


def norm_linear(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_OI: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    bias_O: torch.Tensor | None = None,
    is_normed: bool | None = None,
    squares_RJ: torch.Tensor | None = None,
    workspace: ProjectionWorkspace | None = None,
    is_dependent: bool = False,
    tile: ProjectionTile | HopperTile | None = None,
) -> torch.Tensor:
    """Return rms_norm(x) @ weight.T + bias.

    Args:
        x_RI: rows may be strided.
        norm_weight_I: of the norm. None: it is in the weight, or there is no norm.
        weight_OI: contiguous, of x's dtype.
        eps: added to the mean of squares.
        out: (R, O), of any float dtype. None: allocated, of x's dtype.
        bias_O: added to the product.
        is_normed: whether there is a norm. None: where there is a norm's weight.
        squares_RJ: x's sums of squares, as linear_add and sum_squares write them. None: summed first.
        workspace: for tiles whose inputs are split. None: such a tile is not chosen.
        is_dependent: let it start while the kernel before it runs, where the device can.
        tile: instead of choose_projection_tile's.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    out_RO = x_RI.new_empty((len(x_RI), len(weight_OI))) if out is None else out
    check_projection(x_RI, weight_OI, norm_weight_I, bias_O, out_RO, len(weight_OI))
    is_normed = norm_weight_I is not None if is_normed is None else is_normed
    return _launch(
        *(x_RI, norm_weight_I, weight_OI, bias_O, out_RO, eps),
        squares_RJ=_squares(x_RI, squares_RJ, is_dependent) if is_normed else None,
        workspace=workspace,
        is_dependent=is_dependent,
        tile=tile,
    )


def linear_add(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    residual_RO: torch.Tensor,
    *,
    bias_O: torch.Tensor | None = None,
    squares_RJ: torch.Tensor | None = None,
    workspace: ProjectionWorkspace | None = None,
    is_dependent: bool = False,
    tile: ProjectionTile | HopperTile | None = None,
) -> torch.Tensor:
    """Add x @ weight.T + bias to the residual, in place, and return it.

    Args:
        x_RI: rows may be strided.
        weight_OI: contiguous, of x's dtype.
        residual_RO: rows may be strided.
        bias_O: added to the product.
        squares_RJ: (R, O / SQUARES_CHUNK) in float32: filled with the residual's sums of squares.
        workspace: for tiles whose inputs are split. None: allocated.
        is_dependent: let it start while the kernel before it runs, where the device can.
        tile: instead of choose_projection_tile's.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    check_projection(x_RI, weight_OI, None, bias_O, residual_RO, len(weight_OI))
    return _launch(
        *(x_RI, None, weight_OI, bias_O, residual_RO, 0.0),
        is_added=True,
        squares_RJ=squares_RJ,
        workspace=workspace,
        is_dependent=is_dependent,
        tile=tile,
    )


def norm_gate_up_silu(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_XI: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    is_normed: bool | None = None,
    squares_RJ: torch.Tensor | None = None,
    is_dependent: bool = False,
    tile: ProjectionTile | HopperTile | None = None,
) -> torch.Tensor:
    """Return out_RF = silu(gate) * up of the normalized x; arguments as norm_linear's."""
    F = num_gated(weight_XI)
    out_RF = x_RI.new_empty((len(x_RI), F)) if out is None else out
    check_projection(x_RI, weight_XI, norm_weight_I, None, out_RF, F)
    is_normed = norm_weight_I is not None if is_normed is None else is_normed
    return _launch(
        *(x_RI, norm_weight_I, weight_XI, None, out_RF, eps),
        is_gated=True,
        squares_RJ=_squares(x_RI, squares_RJ, is_dependent) if is_normed else None,
        is_dependent=is_dependent,
        tile=tile,
    )


def _launch(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    out_RO: torch.Tensor,
    eps: float,
    *,
    is_gated: bool = False,
    is_added: bool = False,
    squares_RJ: torch.Tensor | None = None,
    workspace: ProjectionWorkspace | None = None,
    is_dependent: bool,
    tile: ProjectionTile | HopperTile | None,
) -> torch.Tensor:
    (num_rows, num_inputs), num_outputs = x_RI.shape, out_RO.shape[1]
    is_bare = norm_weight_I is None and bias_O is None
    if tile is None and is_bare and _can_use_hopper(x_RI, weight_OI, out_RO):
        tile = choose_hopper_tile(num_outputs, num_inputs, num_rows=num_rows, is_gated=is_gated)
    if isinstance(tile, HopperTile):
        options = {"is_gated": is_gated, "is_added": is_added, "is_dependent": is_dependent}
        return hopper_projection(x_RI, weight_OI, out_RO, eps, tile=tile, squares_RJ=squares_RJ, **options)
    can_split = is_added or workspace is not None
    tile = _fit_tile(tile, x_RI, num_outputs, is_gated=is_gated, can_split=can_split)
    num_row_blocks = triton.cdiv(num_rows, tile.block_rows)
    num_tiles = num_row_blocks * triton.cdiv(num_outputs, tile.block_outputs)
    if is_gated and tile.num_splits > 1:
        raise ValueError("gates and ups are not split")
    _check_tile(tile, squares_RJ, num_rows, num_outputs if is_added else num_inputs, is_added)
    space = _workspace(tile, workspace, num_tiles, x_RI.device)
    can_copy = is_aligned(x_RI) and is_aligned(weight_OI)
    is_tma = tile.is_tma and can_copy
    is_paired = tile.is_paired and tile.is_swapped and is_gated and is_tma
    tiled_projection_kernel[(num_tiles, tile.num_splits)](
        *_sources(x_RI, weight_OI, tile, is_tma=is_tma, is_paired=is_paired),
        *(weight_OI, norm_weight_I, bias_O, out_RO),
        *((None, squares_RJ) if is_added else (squares_RJ, None)),
        *((None, None) if space is None else (space.partial_X, space.counters_X)),
        *(x_RI.stride(0), out_RO.stride(0), num_rows, eps),
        **{"I": num_inputs, "O": num_outputs, "IS_TMA": is_tma, "IS_READ_AHEAD": can_copy},
        **{"IS_GATED": is_gated, "IS_PAIRED": is_paired, "IS_ADDED": is_added},
        **_constants(tile),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return out_RO


def _fit_tile(
    tile: ProjectionTile | None, x_RI: torch.Tensor, num_outputs: int, *, is_gated: bool, can_split: bool
) -> ProjectionTile:
    """Return the tile, or else choose_projection_tile's, with as many stages as the device has room for."""
    num_rows, num_inputs = x_RI.shape
    tile = tile or choose_projection_tile(
        num_outputs,
        num_inputs,
        num_rows=num_rows,
        is_gated=is_gated,
        can_split=can_split,
        itemsize_bytes=x_RI.itemsize,
    )
    return fit_stages(tile, x_RI.device, is_gated=is_gated, itemsize_bytes=x_RI.itemsize)


def _can_use_hopper(x_RI: torch.Tensor, weight_OI: torch.Tensor, out_RO: torch.Tensor) -> bool:
    """Whether hopper_projection can compute such tensors on this device."""
    are_bfloat16 = x_RI.dtype == out_RO.dtype == torch.bfloat16
    return are_bfloat16 and runs_gluon(x_RI.device) and all(map(is_aligned, (x_RI, weight_OI, out_RO)))


def _constants(tile: ProjectionTile) -> dict[str, Any]:
    return {
        "BLOCK_R": tile.block_rows,
        "BLOCK_O": tile.block_outputs,
        "BLOCK_I": tile.block_inputs,
        "SPLITS": tile.num_splits,
        "STAGES": tile.num_stages,
        "MOST_AHEAD": tile.most_ahead,
        "IS_SWAPPED": tile.is_swapped,
        "IS_EARLY": tile.is_early,
        "num_warps": tile.num_warps,
    }


def _squares(x_RI: torch.Tensor, squares_RJ: torch.Tensor | None, is_dependent: bool) -> torch.Tensor:
    return sum_squares(x_RI, is_dependent=is_dependent) if squares_RJ is None else squares_RJ


def _check_tile(
    tile: ProjectionTile, squares_RJ: torch.Tensor | None, num_rows: int, num_squared: int, is_added: bool
) -> None:
    """Raise ValueError where the squares do not fit, or a tile makes none."""
    if squares_RJ is not None:
        check_squares(squares_RJ, num_rows, num_squared)
        if is_added and tile.block_outputs % SQUARES_CHUNK:
            raise ValueError(
                f"a tile of {tile.block_outputs} outputs makes no sums of {SQUARES_CHUNK} squares"
            )


def _workspace(
    tile: ProjectionTile, workspace: ProjectionWorkspace | None, num_tiles: int, device: torch.device
) -> ProjectionWorkspace | None:
    """Return where splits meet, or None where there are none."""
    if tile.num_splits == 1:
        return None
    num_numbers = num_tiles * tile.num_splits * tile.block_rows * tile.block_outputs
    if workspace is None:
        workspace = make_projection_workspace(num_numbers=num_numbers, device=device)
    if workspace.partial_X.numel() < num_numbers or num_tiles > MAX_TILES:
        raise ValueError(
            f"{num_tiles} tiles of {num_numbers} numbers are more than {MAX_TILES} tiles "
            f"or the workspace's {workspace.partial_X.numel()} numbers"
        )
    return workspace


def _sources(
    x_RI: torch.Tensor, weight_OI: torch.Tensor, tile: ProjectionTile, *, is_tma: bool, is_paired: bool
) -> list[Any]:
    """Return what the kernel reads rows and weights from."""
    x_RI = with_rows_behind(x_RI, tile.block_rows)
    rows = tile_source(x_RI, (tile.block_rows, tile.block_inputs), is_tma)
    if not is_paired:
        return [rows, tile_source(weight_OI, (tile.block_outputs, tile.block_inputs), is_tma)]
    gates_and_ups = weight_OI.view(2, -1, weight_OI.shape[1])
    return [rows, TensorDescriptor.from_tensor(gates_and_ups, [2, tile.block_outputs, tile.block_inputs])]


def is_aligned(rows: torch.Tensor) -> bool:
    """Whether the copy engine can copy tiles of rows, and the L2 cache read them ahead."""
    return rows.data_ptr() % ALIGNMENT_BYTES == 0 and rows.stride(0) * rows.itemsize % ALIGNMENT_BYTES == 0


def tile_source(rows: torch.Tensor, block: tuple[int, int], is_tma: bool) -> Any:
    """Return what the kernel reads rows from."""
    return TensorDescriptor.from_tensor(rows, list(block)) if is_tma else rows
