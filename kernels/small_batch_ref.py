"""The plain PyTorch references of small_batch, and what its arguments must fit.

Knows nothing about Triton.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F: gate rows, then up rows.
"""

import torch
from torch.nn.functional import linear, rms_norm, silu

MAX_ROWS = 32
MAX_INPUTS = 4096
"""A program holds whole rows of inputs in registers."""
MAX_INPUTS_OF_ONE_ROW = 16384


def max_inputs(num_rows: int) -> int:
    """Return the most inputs of so many rows."""
    return MAX_INPUTS_OF_ONE_ROW if num_rows == 1 else MAX_INPUTS


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
    gate_RF, up_RF = norm_linear_ref(x_RI, norm_weight_I, weight_XI, eps).chunk(2, -1)
    return silu(gate_RF) * up_RF


def num_gated(weight_XI: torch.Tensor) -> int:
    """Return F; raise ValueError where the weight has not as many gates as ups."""
    if len(weight_XI) % 2:
        raise ValueError(f"weight must have an even number of rows, gates and ups, but has {len(weight_XI)}")
    return len(weight_XI) // 2


def check_small_batch(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    bias_O: torch.Tensor | None,
    out_RO: torch.Tensor,
    num_outputs: int,
) -> None:
    """Raise ValueError where the arguments do not fit each other, or are too large."""
    if x_RI.ndim != 2 or not 1 <= len(x_RI) <= MAX_ROWS or not 1 <= x_RI.shape[1] <= max_inputs(len(x_RI)):
        raise ValueError(
            f"x must have 1 to {MAX_ROWS} rows of at most {MAX_INPUTS}, or one of {MAX_INPUTS_OF_ONE_ROW}, "
            f"but has {tuple(x_RI.shape)}"
        )
    check_projection(x_RI, weight_OI, norm_weight_I, bias_O, out_RO, num_outputs)


def check_projection(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    norm_weight_I: torch.Tensor | None,
    bias_O: torch.Tensor | None,
    out_RO: torch.Tensor,
    num_outputs: int,
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    if x_RI.ndim != 2 or 0 in x_RI.shape:
        raise ValueError(f"x must have rows and inputs, but has {tuple(x_RI.shape)}")
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
