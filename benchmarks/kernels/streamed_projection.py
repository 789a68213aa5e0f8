"""Norm, head and sampler of Qwen3-0.6B's decode steps in bf16: the head by cuBLAS, streamed, summed up, too.

    python benchmarks/kernels/streamed_projection.py

Each time is what they add to the projection in front of them, in one graph, as in a step. Knows nothing about
layers.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_timing import describe_card, graph_microseconds, read_bandwidth
from kernels import small_batch, tiled_projection
from kernels.device_sampler import sample_decode, summary_of
from kernels.fused_norm import add_rms_norm
from kernels.sampler_tables import SamplerFlavour, allocate_lane_sampling, allocate_sampler_workspace
from kernels.streamed_projection import streamed_projection

E, F, V = 1024, 3072, 151_936
ROWS = (1, 2, 4, 8, 16, 32, 64, 80, 96, 128, 144, 160, 192, 256)
EPS = 1e-6
SAMPLED = SamplerFlavour.SAMPLED


class Tail:
    """A batch size's activations, and what a step ends with."""

    def __init__(self, num_rows: int, weight_VE: torch.Tensor) -> None:
        def rows(size: int) -> torch.Tensor:
            # With memory behind the rows, as in a step.
            return torch.randn(max(ROWS), size, device="cuda", dtype=torch.bfloat16)[:num_rows]

        self._weight_VE = weight_VE
        self._down_EF = torch.randn(E, F, device="cuda", dtype=torch.bfloat16).mul_(F**-0.5)
        self._norm_E = torch.ones(E, device="cuda", dtype=torch.bfloat16)
        self._gated_BF, self._residual_BE, self._normed_BE, self._logits_BV = map(rows, (F, E, E, V))
        self._lanes_B = torch.arange(num_rows, device="cuda", dtype=torch.int32)
        self._token_pool_LP = torch.zeros((num_rows, 4096), device="cuda", dtype=torch.int32)
        self._out_B = torch.zeros_like(self._lanes_B)
        self._tables = allocate_lane_sampling(num_rows, "cuda")
        self._tables.temperature_L.fill_(0.6)
        self._workspace = allocate_sampler_workspace(num_rows, V, flavour=SAMPLED, device="cuda")

    def down(self) -> None:
        """Launch what stands in front."""
        module = small_batch if len(self._lanes_B) <= small_batch.MAX_ROWS else tiled_projection
        module.linear_add(self._gated_BF, self._down_EF, self._residual_BE, is_dependent=True)

    def cublas(self) -> None:
        """Launch the head by cuBLAS, and the sampler."""
        self._normalize()
        torch.mm(self._normed_BE, self._weight_VE.t(), out=self._logits_BV)
        self._sample(is_summarized=False)

    def streamed(self, *, is_summarized: bool) -> None:
        """Launch the streamed head, and the sampler."""
        self._normalize()
        summary = None
        if is_summarized:
            summary = summary_of(
                self._lanes_B, self._lanes_B, self._tables, flavour=SAMPLED, workspace=self._workspace
            )
        streamed_projection(
            self._normed_BE, self._weight_VE, self._logits_BV, summary=summary, is_dependent=True
        )
        self._sample(is_summarized=is_summarized)

    def _normalize(self) -> None:
        add_rms_norm(self._residual_BE, None, self._norm_E, EPS, out=self._normed_BE, is_dependent=True)

    def _sample(self, *, is_summarized: bool) -> None:
        sample_decode(
            *(self._logits_BV, self._lanes_B, self._lanes_B, self._tables, self._token_pool_LP, self._out_B),
            flavour=SAMPLED,
            workspace=self._workspace,
            is_summarized=is_summarized,
            is_dependent=True,
        )


def main() -> None:
    """Print the table."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    floor = V * E * 2 / read_bandwidth() / 1e3
    print(f"{describe_card()}; reading the head takes {floor:.1f} us")
    weight_VE = torch.randn(V, E, device="cuda", dtype=torch.bfloat16).mul_(E**-0.5)
    print(f"{'us, by rows':12s}{'cuBLAS':>10s}{'streamed':>10s}{'summed up':>10s}")
    for num_rows in ROWS:
        tail = Tail(num_rows, weight_VE)
        alone = graph_microseconds([tail.down] * 8)
        ways: tuple[Callable[[], None], ...] = (
            tail.cublas,
            partial(tail.streamed, is_summarized=False),
            partial(tail.streamed, is_summarized=True),
        )
        figures = [2 * graph_microseconds([tail.down, way] * 4) - alone for way in ways]
        print(f"{num_rows:<12d}" + "".join(f"{figure:10.1f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
