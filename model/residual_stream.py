"""The residual stream of a fused forward pass: projections read it normalized, and add to it.

cuBLAS adds where it projects; a few rows go through kernels that do norm, projection and gate or sum at
once. Knows nothing about layers or attention.

Shapes: T rows, I inputs, O outputs, E hidden, X = (H + 2K) * D projected, H query heads, K KV heads, D
head dim, F intermediate, G = 2 * F.
"""

from dataclasses import dataclass

import torch

from kernels.fused_norm import add_rms_norm
from kernels.silu_mul import silu_mul
from kernels.small_batch import can_fuse, linear_add, norm_gate_up_silu, norm_linear
from model.decoder import CausalLM
from model.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """x @ weight.T + bias, into memory that is given."""

    weight_OI: torch.Tensor
    weight_IO: torch.Tensor
    """The same, transposed: a view."""
    bias_O: torch.Tensor | None

    def is_small(self, num_rows: int, most_rows: int) -> bool:
        """Whether the kernels for a few rows take it, and are wanted for so many."""
        itemsize_bytes = self.weight_OI.element_size()
        return num_rows <= most_rows and can_fuse(
            num_rows, self.weight_OI.shape[1], itemsize_bytes=itemsize_bytes
        )

    def __call__(self, x_TI: torch.Tensor, out_TO: torch.Tensor) -> None:
        """Compute it."""
        if self.bias_O is None:
            torch.mm(x_TI, self.weight_IO, out=out_TO)
        else:
            torch.addmm(self.bias_O, x_TI, self.weight_IO, out=out_TO)


def make_projection(module: Linear) -> Projection:
    """Take a layer's weight as it lies."""
    assert module.weight is not None, "a packed weight is for CPUs"
    return Projection(weight_OI=module.weight, weight_IO=module.weight.t(), bias_O=module.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Memory for one step's activations; its first rows serve a smaller step."""

    residual_TE: torch.Tensor
    normed_TE: torch.Tensor
    qkv_TX: torch.Tensor
    q_THD: torch.Tensor
    attended_THD: torch.Tensor
    gate_up_TG: torch.Tensor
    gated_TF: torch.Tensor

    def first(self, num_tokens: int) -> "Workspace":
        """Return views of the first rows."""
        return Workspace(**{name: getattr(self, name)[:num_tokens] for name in self.__dataclass_fields__})


def make_workspace(model: CausalLM, num_tokens: int) -> Workspace:
    """Allocate for this many tokens, on the model's device."""
    config, like = model.config, model.embedding.weight
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

    def rows(*shape: int) -> torch.Tensor:
        # Rows that a padded step leaves out are computed with the others: they begin as numbers.
        return like.new_zeros((num_tokens, *shape))

    return Workspace(
        residual_TE=rows(config.hidden_size),
        normed_TE=rows(config.hidden_size),
        qkv_TX=rows((num_heads + 2 * num_kv_heads) * head_dim),
        q_THD=rows(num_heads, head_dim),
        attended_THD=rows(num_heads, head_dim),
        gate_up_TG=rows(2 * config.intermediate_size),
        gated_TF=rows(config.intermediate_size),
    )


class ResidualStream:
    """The residual of one step. Kernels are queued in the order of the calls."""

    def __init__(self, work: Workspace, *, eps: float) -> None:
        """Take memory whose residual is filled."""
        self.work = work
        self._eps = eps

    def normed(self, norm_E: torch.Tensor) -> torch.Tensor:
        """Return the normalized residual."""
        work = self.work
        return add_rms_norm(work.residual_TE, None, norm_E, self._eps, out=work.normed_TE, is_dependent=True)

    def project(
        self, norm_E: torch.Tensor, projection: Projection, *, out_TO: torch.Tensor, is_small: bool
    ) -> None:
        """Write the projection of the normalized residual."""
        if not is_small:
            projection(self.normed(norm_E), out_TO)
            return
        norm_linear(
            self.work.residual_TE,
            norm_E,
            projection.weight_OI,
            self._eps,
            out=out_TO,
            bias_O=projection.bias_O,
            is_dependent=True,
        )

    def project_gated(self, norm_E: torch.Tensor, gate_up: Projection, *, is_small: bool) -> None:
        """Write silu(gate) * up of the normalized residual to the workspace."""
        work = self.work
        if not is_small:
            gate_up(self.normed(norm_E), work.gate_up_TG)
            silu_mul(work.gate_up_TG, out=work.gated_TF, is_dependent=True)
            return
        norm_gate_up_silu(
            work.residual_TE, norm_E, gate_up.weight_OI, self._eps, out=work.gated_TF, is_dependent=True
        )

    def add(self, projection: Projection, x_TI: torch.Tensor, *, is_small: bool) -> None:
        """Add the projection of x to the residual."""
        residual_TE = self.work.residual_TE
        if is_small:
            linear_add(x_TI, projection.weight_OI, residual_TE, bias_O=projection.bias_O, is_dependent=True)
            return
        if projection.bias_O is not None:
            residual_TE.add_(projection.bias_O)
        torch.addmm(residual_TE, x_TI, projection.weight_IO, out=residual_TE)
