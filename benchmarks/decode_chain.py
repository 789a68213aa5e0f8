"""All projections and small kernels of a Qwen3-0.6B decode step, with random weights, attention left out.

Each kernel reads what the one before it wrote, as in a step. Knows nothing about timing.

Shapes: B rows, E hidden, H query heads, K KV heads, D head dim, F intermediate, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

import torch

from kernels import small_batch, tiled_projection
from kernels.fused_norm import add_rms_norm
from kernels.hopper_tiles import HopperTile
from kernels.qk_norm_rope import qk_norm_rope_store
from kernels.row_squares import num_sums
from kernels.silu_mul import silu_mul
from kernels.tiled_config import ProjectionTile, make_projection_workspace

E, H, K, D, F, V = 1024, 16, 8, 128, 3072, 151936
NUM_LAYERS = 28
NUM_POSITIONS = 4096
BLOCK_SIZE = 16
MEMORY_ROWS = 256
EPS = 1e-6
AnyTile = small_batch.Tile | ProjectionTile | HopperTile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionSize:
    """One projection: outputs are those of the fused kernel, so half the weight's rows if gated."""

    num_outputs: int
    num_inputs: int
    num_weights: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight."""
        return self.num_weights * self.num_outputs * self.num_inputs * 2


PROJECTIONS = {
    "qkv": ProjectionSize(num_outputs=(H + 2 * K) * D, num_inputs=E),
    "output": ProjectionSize(num_outputs=E, num_inputs=H * D),
    "gate_up": ProjectionSize(num_outputs=F, num_inputs=E, num_weights=2),
    "down": ProjectionSize(num_outputs=E, num_inputs=F),
    "head": ProjectionSize(num_outputs=V, num_inputs=E),
}
LAYER_PROJECTIONS = ("qkv", "output", "gate_up", "down")
BYTES_PER_STEP = (
    NUM_LAYERS * sum(PROJECTIONS[name].num_bytes for name in LAYER_PROJECTIONS)
    + PROJECTIONS["head"].num_bytes
)


@cache
def _weights() -> dict[str, torch.Tensor]:
    """Return each projection's weight in all layers; several chains share them."""
    weights = {}
    for name, size in PROJECTIONS.items():
        shape = (size.num_weights * size.num_outputs, size.num_inputs)
        num_layers = NUM_LAYERS if name in LAYER_PROJECTIONS else 1
        weight = torch.randn(num_layers, *shape, device="cuda", dtype=torch.bfloat16)
        weights[name] = weight.mul_(size.num_inputs**-0.5)
    return weights


class Kernels(Enum):
    """Which kernels compute the projections, and the norms, gates and sums around them."""

    CUBLAS = "cuBLAS"
    """And a kernel for each of the others."""
    FEW_ROWS = "few rows"
    TILED = "tiled"


class DecodeChain:
    """One batch size's activations, and its kernels."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._weights = _weights()
        self._norm_E = torch.ones(E, device="cuda", dtype=torch.bfloat16)
        self._norm_D = torch.ones(D, device="cuda", dtype=torch.bfloat16)
        self._cos_sin_PD = torch.randn(NUM_POSITIONS, D, device="cuda")
        self._residual_BE, self._normed_BE = self._rows(2, E)
        self._qkv_BX = self._rows(1, (H + 2 * K) * D)[0]
        self._q_BHD = self._rows(1, H * D)[0].view(num_rows, H, D)
        self._gate_up_BX, self._gated_BF = self._rows(1, 2 * F)[0], self._rows(1, F)[0]
        self._logits_BV = self._rows(1, V)[0]
        self._positions_B = torch.arange(num_rows, device="cuda", dtype=torch.int32)
        self._slots_B = torch.arange(num_rows, device="cuda") * BLOCK_SIZE
        self._caches = torch.zeros(2, num_rows, BLOCK_SIZE, K, D, device="cuda", dtype=torch.bfloat16)
        self._squares_BJ = torch.ones(num_rows, num_sums(E), device="cuda")
        self._splits = make_projection_workspace(device="cuda")

    def _rows(self, num_tensors: int, size: int) -> torch.Tensor:
        # With memory behind the rows, as in a step, whose rows are the first ones of a workspace.
        num_there = -(-self.num_rows // MEMORY_ROWS) * MEMORY_ROWS
        rows = torch.randn(num_tensors, num_there, size, device="cuda", dtype=torch.bfloat16)
        return rows[:, : self.num_rows]

    def step(self, kernels: Kernels, *, is_dependent: bool) -> None:
        """Launch all layers and the head."""
        for layer in range(NUM_LAYERS):
            self.layer(kernels, layer, is_dependent=is_dependent)
        self._launch("head", 0, kernels=kernels, options={"is_dependent": is_dependent})

    def layer(
        self,
        kernels: Kernels,
        layer: int,
        *,
        is_dependent: bool,
        tiles: Mapping[str, AnyTile] | None = None,
        is_rotated: bool = True,
    ) -> None:
        """Launch one layer's projections.

        Args:
            kernels: which.
            layer: its index.
            is_dependent: whether each kernel starts while the one before it runs.
            tiles: of projections whose own choice is not wanted.
            is_rotated: whether queries and keys are normalized, rotated and stored as well.
        """
        for name in LAYER_PROJECTIONS:
            options: dict[str, Any] = {"is_dependent": is_dependent}
            if kernels is not Kernels.CUBLAS:
                options["tile"] = (tiles or {}).get(name)
            self._launch(name, layer, kernels=kernels, options=options)
            if name == "qkv" and is_rotated:
                self._rotate_and_store(is_dependent=is_dependent)

    def projection(self, name: str, kernels: Kernels, **options: Any) -> list[Callable[[], None]]:
        """Return launches of one projection, with what belongs to it, one a layer."""
        return [
            partial(self._launch, name, layer, kernels=kernels, options=options)
            for layer in range(len(self._weights[name]))
        ]

    def _launch(self, name: str, layer: int, *, kernels: Kernels, options: dict[str, Any]) -> None:
        weight = self._weights[name][layer]
        if kernels is Kernels.CUBLAS:
            self._launch_separate(name, weight, **options)
        else:
            self._launch_fused(name, weight, kernels=kernels, options=options)

    def _launch_fused(
        self, name: str, weight: torch.Tensor, *, kernels: Kernels, options: dict[str, Any]
    ) -> None:
        module = tiled_projection if kernels is Kernels.TILED else small_batch
        if kernels is Kernels.TILED:
            options = {"squares_RJ": self._squares_BJ, **options}
            if name in ("output", "down"):
                options["workspace"] = self._splits
        if name in ("output", "down"):
            x = self._q_BHD.flatten(1) if name == "output" else self._gated_BF
            module.linear_add(x, weight, self._residual_BE, **options)
            return
        outs = {"qkv": self._qkv_BX, "gate_up": self._gated_BF, "head": self._logits_BV}
        function = module.norm_gate_up_silu if name == "gate_up" else module.norm_linear
        # The norm's weight is in the projection's, but for the head, whose weight is the embedding's, too.
        norm_E = self._norm_E if name == "head" else None
        function(self._residual_BE, norm_E, weight, EPS, outs[name], is_normed=True, **options)

    def _launch_separate(self, name: str, weight: torch.Tensor, *, is_dependent: bool) -> None:
        """Launch cuBLAS, after the norm where the projection has one."""
        if name in ("output", "down"):
            x = self._q_BHD.flatten(1) if name == "output" else self._gated_BF
            torch.addmm(self._residual_BE, x, weight.t(), out=self._residual_BE)
            return
        add_rms_norm(
            *(self._residual_BE, None, self._norm_E, EPS, self._normed_BE), is_dependent=is_dependent
        )
        outs = {"qkv": self._qkv_BX, "gate_up": self._gate_up_BX, "head": self._logits_BV}
        torch.mm(self._normed_BE, weight.t(), out=outs[name])
        if name == "gate_up":
            silu_mul(self._gate_up_BX, out=self._gated_BF, is_dependent=is_dependent)

    def _rotate_and_store(self, *, is_dependent: bool) -> None:
        qk_norm_rope_store(
            *(self._qkv_BX, self._positions_B, self._cos_sin_PD, self._norm_D, self._norm_D, EPS),
            *(self._caches[0], self._caches[1], self._slots_B, H, K, self._q_BHD),
            is_dependent=is_dependent,
        )
