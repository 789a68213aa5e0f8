"""QKV and gated projections at thousands of rows, Qwen3-0.6B's shapes: cuBLAS and kernels apart, and fused.

    python benchmarks/kernels/large_projection.py [--rows 4096 16384]

Knows nothing about attention or the model around it.

Shapes: R rows, E hidden, H query heads, K KV heads, D head dim, F intermediate.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.decode_chain import EPS, PROJECTIONS, D, E, F, H, K
from benchmarks.gpu_timing import describe_card, graph_microseconds
from kernels import large_projection
from kernels.large_projection_ref import Heads
from kernels.qk_norm_rope import qk_norm_rope_store
from kernels.silu_mul import silu_mul

NUM_LAYERS = 28
NUM_POSITIONS = 4096
BLOCK_SIZE = 16
NAMES = ("qkv", "gate_up")
ROWS = (512, 1024, 2048, 4096, 8192, 16384)


def make_weights() -> dict[str, torch.Tensor]:
    """Return each projection's weights in all layers."""
    weights = {}
    for name in NAMES:
        size = PROJECTIONS[name]
        shape = (NUM_LAYERS, size.num_weights * size.num_outputs, size.num_inputs)
        weight = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        weights[name] = weight.mul_(size.num_inputs**-0.5)
    return weights


class Layers:
    """Some rows' activations, and their projections both ways."""

    def __init__(self, num_rows: int, weights: dict[str, torch.Tensor]) -> None:
        def rows(*shape: int) -> torch.Tensor:
            return torch.randn(num_rows, *shape, device="cuda", dtype=torch.bfloat16)

        self.weights = weights
        self.residual_RE, self.gated_RF = rows(E), rows(F)
        self.qkv_RX, self.q_RHD = rows((H + 2 * K) * D), rows(H, D)
        self._gate_up_RX = rows(2 * F)
        num_blocks = num_rows // BLOCK_SIZE + 2
        blocks = torch.randperm(num_blocks, device="cuda")[:, None] * BLOCK_SIZE
        slots = (blocks + torch.arange(BLOCK_SIZE, device="cuda")).flatten()[:num_rows].contiguous()
        self.caches = torch.zeros(2, num_blocks, BLOCK_SIZE, K, D, device="cuda", dtype=torch.bfloat16)
        self._heads = Heads(
            positions_R=torch.arange(num_rows, device="cuda", dtype=torch.int32) % NUM_POSITIONS,
            cos_sin_PD=torch.randn(NUM_POSITIONS, D, device="cuda"),
            q_weight_D=torch.rand(D, device="cuda", dtype=torch.bfloat16) + 0.5,
            k_weight_D=torch.rand(D, device="cuda", dtype=torch.bfloat16) + 0.5,
            eps=EPS,
            key_cache_NSKD=self.caches[0],
            value_cache_NSKD=self.caches[1],
            slot_mapping_R=slots,
            out_q_RHD=self.q_RHD,
            out_RX=self.qkv_RX,
        )

    def fused(self, name: str, layer: int) -> None:
        """Launch one projection by large_projection."""
        weight = self.weights[name][layer]
        if name == "qkv":
            large_projection.norm_qkv_rotate(self.residual_RE, weight, EPS, self._heads, is_dependent=True)
        else:
            large_projection.norm_gate_up_silu(
                self.residual_RE, weight, EPS, self.gated_RF, is_dependent=True
            )

    def apart(self, name: str, layer: int) -> None:
        """Launch one projection by cuBLAS; what belongs to it applies the norm, too."""
        weight_IO, heads = self.weights[name][layer].t(), self._heads
        options: dict[str, Any] = {"residual_TE": self.residual_RE, "is_dependent": True}
        if name == "gate_up":
            torch.mm(self.residual_RE, weight_IO, out=self._gate_up_RX)
            silu_mul(self._gate_up_RX, out=self.gated_RF, eps=EPS, **options)
            return
        torch.mm(self.residual_RE, weight_IO, out=self.qkv_RX)
        qk_norm_rope_store(
            *(self.qkv_RX, heads.positions_R, heads.cos_sin_PD, heads.q_weight_D, heads.k_weight_D, EPS),
            *(self.caches[0], self.caches[1], heads.slot_mapping_R, H, K, self.q_RHD),
            in_place=True,
            **options,
        )

    def error(self, name: str) -> float:
        """Return the largest difference between both ways, by the largest number."""
        results = []
        for launch in (self.apart, self.fused):
            launch(name, 0)
            outs = (self.q_RHD, self.qkv_RX[:, H * D :], self.caches) if name == "qkv" else (self.gated_RF,)
            results.append(torch.cat([out.flatten() for out in outs]).float())
        return float((results[0] - results[1]).abs().max() / results[0].abs().max())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time projections at thousands of rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    torch.manual_seed(0)
    print(f"{describe_card()}; us of cuBLAS and kernels apart, and fused")
    weights = make_weights()
    for num_rows in options.rows:
        layers = Layers(num_rows, weights)
        for name in NAMES:
            error = layers.error(name)
            apart, fused = (
                graph_microseconds([partial(launch, name, layer) for layer in range(NUM_LAYERS)])
                for launch in (layers.apart, layers.fused)
            )
            rate = 2 * num_rows * weights[name][0].numel() / fused / 1e6
            print(f"{num_rows:6} {name:8} {apart:8.1f} {fused:8.1f} {rate:6.0f} TFLOP/s error {error:.1e}")


if __name__ == "__main__":
    main()
