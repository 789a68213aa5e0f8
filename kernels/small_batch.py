"""Projections of 1 to 8 rows, fused with what stands around them: norm in front, gate or sum behind.

A few rows are bound by reading the weights, and by how long a kernel takes to start: so each launch
does more, and may start early. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F: gate rows, then up rows.
"""

import torch
import triton
from torch.nn.functional import linear, rms_norm

from kernels.dependent_launch import can_depend, launch_options
from kernels.silu_mul import silu_mul_ref
from kernels.small_batch_kernel import small_batch_kernel

MAX_ROWS = 8
MAX_INPUTS = 16384
"""A program holds whole rows of inputs in registers."""

Tile = tuple[int, int]
"""Outputs a program, warps."""


def norm_linear(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_OI: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    bias_O: torch.Tensor | None = None,
    is_dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Return rms_norm(x) @ weight.T + bias; without a norm weight x as it is.

    Args:
        x_RI: at most MAX_ROWS rows, which may be strided.
        norm_weight_I: of the norm; None: no norm.
        weight_OI: contiguous, of x's dtype.
        eps: added to the mean of squares.
        out: (R, O), of any float dtype. None: allocated, of x's dtype.
        bias_O: added to the product.
        is_dependent: let it start while the kernel before it runs, where the device can.
        tile: instead of choose_tile's.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    out_RO = x_RI.new_empty((len(x_RI), len(weight_OI))) if out is None else out
    _check(x_RI, weight_OI, norm_weight_I, bias_O, out_RO, len(weight_OI))
    return _launch(
        *(x_RI, norm_weight_I, weight_OI, bias_O, out_RO, eps), is_dependent=is_dependent, tile=tile
    )


def linear_add(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    residual_RO: torch.Tensor,
    *,
    bias_O: torch.Tensor | None = None,
    is_dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Add x @ weight.T + bias to the residual, in place, and return it; arguments as norm_linear's."""
    _check(x_RI, weight_OI, None, bias_O, residual_RO, len(weight_OI))
    return _launch(
        *(x_RI, None, weight_OI, bias_O, residual_RO, 0.0),
        is_added=True,
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
    is_dependent: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Return out_RF = silu(gate) * up of the normalized x; arguments as norm_linear's."""
    F = len(weight_XI) // 2
    if len(weight_XI) % 2:
        raise ValueError(f"weight must have an even number of rows, gates and ups, but has {len(weight_XI)}")
    out_RF = x_RI.new_empty((len(x_RI), F)) if out is None else out
    _check(x_RI, weight_XI, norm_weight_I, None, out_RF, F)
    return _launch(
        *(x_RI, norm_weight_I, weight_XI, None, out_RF, eps),
        is_gated=True,
        is_dependent=is_dependent,
        tile=tile,
    )


def choose_tile(num_outputs: int, num_inputs: int, *, num_rows: int) -> Tile:
    """Return outputs a program and warps: small programs, so that all of the card reads at once."""
    num_warps = min(max(triton.next_power_of_2(num_inputs) // 256, 1), 8)
    if num_outputs >= 32768:
        return 16, 8
    return (8 if num_rows >= 4 and num_outputs >= 4096 else 4), min(num_warps, 4)


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
    is_dependent: bool,
    tile: Tile | None,
) -> torch.Tensor:
    (num_rows, num_inputs), num_outputs = x_RI.shape, out_RO.shape[1]
    block_o, num_warps = tile or choose_tile(num_outputs, num_inputs, num_rows=num_rows)
    small_batch_kernel[(triton.cdiv(num_outputs, block_o),)](
        *(x_RI, norm_weight_I, weight_OI, bias_O, out_RO, x_RI.stride(0), out_RO.stride(0), eps),
        R=num_rows,
        I=num_inputs,
        O=num_outputs,
        BLOCK_I=triton.next_power_of_2(num_inputs),
        BLOCK_O=block_o,
        IS_GATED=is_gated,
        IS_ADDED=is_added,
        num_warps=num_warps,
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return out_RO


def norm_linear_ref(
    x_RI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    weight_OI: torch.Tensor,
    eps: float,
    *,
    bias_O: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what norm_linear does, in plain PyTorch and float32."""
    x32_RI = x_RI.float()
    if norm_weight_I is not None:
        x32_RI = rms_norm(x32_RI, norm_weight_I.shape, norm_weight_I.float(), eps)
    return linear(x32_RI, weight_OI.float(), None if bias_O is None else bias_O.float())


def linear_add_ref(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    residual_RO: torch.Tensor,
    *,
    bias_O: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what linear_add does, in plain PyTorch and float32; the residual stays as it is."""
    return residual_RO.float() + norm_linear_ref(x_RI, None, weight_OI, 0.0, bias_O=bias_O)


def norm_gate_up_silu_ref(
    x_RI: torch.Tensor, norm_weight_I: torch.Tensor | None, weight_XI: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return what norm_gate_up_silu does, in plain PyTorch and float32."""
    return silu_mul_ref(norm_linear_ref(x_RI, norm_weight_I, weight_XI, eps))


def _check(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    bias_O: torch.Tensor | None,
    out_RO: torch.Tensor,
    num_outputs: int,
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    if x_RI.ndim != 2 or not 1 <= len(x_RI) <= MAX_ROWS or not 1 <= x_RI.shape[1] <= MAX_INPUTS:
        raise ValueError(
            f"x must have 1 to {MAX_ROWS} rows of at most {MAX_INPUTS}, but has {tuple(x_RI.shape)}"
        )
    num_rows, num_inputs = x_RI.shape
    if weight_OI.dtype != x_RI.dtype:
        raise ValueError(f"weight of {weight_OI.dtype} does not fit x of {x_RI.dtype}")
    expected = (
        ("weight", weight_OI, (len(weight_OI), num_inputs)),
        ("norm_weight", norm_weight_I, (num_inputs,)),
        ("bias", bias_O, (num_outputs,)),
    )
    for name, tensor, shape in expected:
        if tensor is not None and (tensor.shape != shape or not tensor.is_contiguous()):
            raise ValueError(f"{name} must be contiguous, of {shape}, but has {tuple(tensor.shape)}")
    if out_RO.shape != (num_rows, num_outputs) or out_RO.stride(1) != 1 or x_RI.stride(1) != 1:
        raise ValueError(
            f"out must have {(num_rows, num_outputs)} and rows without gaps, as x, "
            f"but has {tuple(out_RO.shape)}, strides {out_RO.stride()} and {x_RI.stride()}"
        )
