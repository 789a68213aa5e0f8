"""A norm that is left to who reads the projection: the residual is projected as it is, where that is fine."""

from dataclasses import fields

import pytest
import torch

from kernels.silu_mul import silu_mul_ref
from kernels.tiled_config import make_projection_workspace
from model.projection import Projection, Way
from model.ranks import OneRank
from model.residual_stream import ResidualStream
from model.workspace import Workspace

NUM_ROWS, HIDDEN = 3, 64
EPS = 1e-6


def make_projection(dtype: torch.dtype, *, has_bias: bool = False, has_norm: bool = True) -> Projection:
    weight_OI = (torch.randn(2 * HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1)) / 8).to(dtype)
    bias_O = torch.ones(2 * HIDDEN, dtype=dtype) if has_bias else None
    return Projection(weight_OI=weight_OI, weight_IO=weight_OI.t(), bias_O=bias_O, has_norm=has_norm)


def make_workspace(dtype: torch.dtype) -> Workspace:
    tensors = {field.name: torch.zeros(NUM_ROWS, HIDDEN, dtype=dtype) for field in fields(Workspace)}
    tensors["gate_up_TG"] = torch.zeros(NUM_ROWS, 2 * HIDDEN, dtype=dtype)
    tensors["splits"] = make_projection_workspace(device="cpu", num_numbers=16)  # type: ignore[assignment]
    tensors["shared"] = None  # type: ignore[assignment]
    return Workspace(**tensors)  # type: ignore[arg-type]


def test_who_can_scale_after() -> None:
    assert make_projection(torch.bfloat16).can_scale_after
    assert not make_projection(torch.bfloat16, has_bias=True).can_scale_after
    assert not make_projection(torch.bfloat16, has_norm=False).can_scale_after
    assert not make_projection(torch.float16).can_scale_after
    assert not make_projection(torch.float32).can_scale_after


@pytest.mark.parametrize("size", [1e-2, 1e6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gate_of_rows_of_any_size(dtype: torch.dtype, size: float) -> None:
    if torch.cuda.is_available():
        pytest.skip("the workspace lies on the CPU")
    work, gate_up = make_workspace(dtype), make_projection(dtype)
    work.residual_TE.copy_(size * torch.randn(NUM_ROWS, HIDDEN, generator=torch.Generator().manual_seed(2)))
    stream = ResidualStream(work, ranks=OneRank(), eps=EPS)
    stream.project_gated(torch.ones(HIDDEN, dtype=dtype), gate_up, way=Way.CUBLAS)
    x_TE = work.residual_TE.double()
    normed_TE = x_TE * (x_TE.square().mean(1, keepdim=True) + EPS).rsqrt()
    expected = silu_mul_ref(normed_TE @ gate_up.weight_OI.double().t())
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(work.gated_TF.double(), expected, rtol=tolerance, atol=tolerance)
    # Only one of both is projected.
    assert bool(work.normed_TE.any()) == (dtype == torch.float32)
