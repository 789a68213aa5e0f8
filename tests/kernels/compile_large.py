"""Compile kernels in Gluon for a Hopper GPU where there is none; print each one's shared memory.

    python -m tests.kernels.compile_large

Run as a process of its own: Triton's interpreter, which other kernel tests use, must be off.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels import (
    gluon_kernels,
    hopper_decode,
    hopper_heads,
    hopper_projection,
    large_head,
    large_projection,
)
from kernels.device_sampler import summary_of
from kernels.hopper_tiles import choose_head_tile, choose_hopper_tile
from kernels.large_projection_ref import Heads
from kernels.qkv_rows import QkvRows
from kernels.sampler_tables import SamplerFlavour, allocate_lane_sampling, allocate_sampler_workspace

NUM_ROWS, E, F, H, K, D, V = 4000, 1024, 3072, 16, 8, 128, 1024


class NoGpu:
    """Takes the place of Triton's driver, as far as compiling needs one."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0


class Compiling:
    """Takes the place of a kernel: what would be launched is compiled."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int]) -> Any:
        def compile_it(*arguments: Any, **options: Any) -> None:
            compiled = self._kernel.warmup(*arguments, grid=grid, **options)
            sys.stdout.write(f"{self._kernel.fn.__name__} {compiled.metadata.shared}\n")

        return compile_it


def numbers(*shape: int) -> torch.Tensor:
    """Return numbers, of which nothing is asked but where they lie."""
    return torch.zeros(shape, dtype=torch.bfloat16)


def compile_held(num_rows: int, num_outputs: int, *, is_gated: bool = False, is_added: bool = False) -> None:
    """Compile a projection of fewer rows."""
    tile = choose_hopper_tile(num_outputs, E, num_rows=num_rows, is_gated=is_gated)
    assert tile is not None
    weight, out = numbers(num_outputs * (1 + is_gated), E), numbers(num_rows, num_outputs)
    squares = torch.ones(num_rows, (num_outputs if is_added else E) // 32)
    hopper_projection.hopper_projection(
        *(numbers(num_rows, E), weight, out, 1e-6),
        tile=tile,
        is_gated=is_gated,
        is_added=is_added,
        squares_RJ=squares,
        is_dependent=False,
    )


def compile_heads(num_rows: int, *, has_norm: bool) -> None:
    """Compile QKV of fewer rows with its heads."""
    tile = choose_head_tile((H + 2 * K) * D, E, num_rows=num_rows)
    assert tile is not None
    rows = QkvRows(
        qkv_TX=numbers(num_rows, (H + 2 * K) * D),
        positions_T=torch.zeros(num_rows, dtype=torch.int32),
        slot_mapping_T=torch.zeros(num_rows, dtype=torch.int64),
        cos_sin_PD=torch.ones(4096, D),
        q_norm_D=numbers(D) if has_norm else None,
        k_norm_D=numbers(D) if has_norm else None,
        eps=1e-6,
        q_THD=numbers(num_rows, H, D),
    )
    hopper_heads.hopper_heads(
        *(numbers(num_rows, E), numbers((H + 2 * K) * D, E), 1e-6, rows),
        *(numbers(2, 16, K, D), numbers(2, 16, K, D)),
        squares_RJ=torch.ones(num_rows, E // 32),
        tile=tile,
        is_dependent=True,
    )


def compile_decode(num_rows: int) -> None:
    """Compile decode attention of many rows."""
    rows, table = torch.zeros(num_rows, dtype=torch.int32), torch.zeros(num_rows, 256, dtype=torch.int32)
    hopper_decode.hopper_decode(
        *(numbers(num_rows, H, D), numbers(8, 16, K, D), numbers(8, 16, K, D), table, rows, rows),
        scale_log2=0.1,
        order_B=rows,
        out=numbers(num_rows, H, D),
        is_dependent=True,
    )


def compile_vocabulary(num_rows: int) -> None:
    """Compile the head of a small vocabulary, summed up for the sampler."""
    rows_R, flavour = torch.zeros(num_rows, dtype=torch.int32), SamplerFlavour.SAMPLED
    workspace = allocate_sampler_workspace(num_rows, V, flavour=flavour, device="cpu")
    tables = allocate_lane_sampling(num_rows, "cpu")
    summary = summary_of(rows_R, rows_R, tables, flavour=flavour, workspace=workspace)
    tile = next(tile for rows, tile in large_head.TILES.items() if num_rows in rows)
    large_head.large_head(
        *(numbers(num_rows, E), numbers(V, E), numbers(num_rows, V)),
        tile=tile,
        summary=summary,
        is_dependent=True,
    )


def main() -> None:
    """Compile them: QKV without query heads, too, and of fewer rows half of its heads."""
    driver.set_active(NoGpu())
    setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))  # noqa: B010
    for module in (hopper_heads, large_head, large_projection):
        setattr(module, "can_depend", lambda _: True)  # noqa: B010
    for module, name in (
        (hopper_decode, "hopper_decode_kernel"),
        (hopper_heads, "hopper_heads_kernel"),
        (hopper_projection, "hopper_projection_kernel"),
        (large_head, "large_head_kernel"),
        (large_projection, "large_gate_kernel"),
        (large_projection, "large_qkv_kernel"),
    ):
        setattr(module, name, Compiling(getattr(gluon_kernels, name)))
    for num_rows in (40, 64, 256):
        compile_decode(num_rows)
    compile_heads(40, has_norm=True)
    compile_heads(128, has_norm=True)
    compile_heads(256, has_norm=False)
    for num_rows in (64, 128, 192, 256):
        compile_vocabulary(num_rows)
    compile_held(16, (H + 2 * K) * D)
    compile_held(32, (H + 2 * K) * D // 2)
    compile_held(32, F, is_gated=True)
    compile_held(256, E, is_added=True)
    x, options = numbers(NUM_ROWS, E), {"is_dependent": True}
    large_projection.norm_gate_up_silu(x, numbers(2 * F, E), 1e-6, numbers(NUM_ROWS, F), **options)
    heads = Heads(
        positions_R=torch.zeros(NUM_ROWS, dtype=torch.int32),
        cos_sin_PD=torch.ones(4096, D),
        q_weight_D=numbers(D),
        k_weight_D=numbers(D),
        eps=1e-6,
        key_cache_NSKD=numbers(2, 16, K, D),
        value_cache_NSKD=numbers(2, 16, K, D),
        slot_mapping_R=torch.zeros(NUM_ROWS, dtype=torch.int64),
        out_q_RHD=numbers(NUM_ROWS, H, D),
        out_RX=numbers(NUM_ROWS, (H + 2 * K) * D),
    )
    large_projection.norm_qkv_rotate(x, numbers((H + 2 * K) * D, E), 1e-6, heads, **options)
    no_queries = replace(
        heads, out_q_RHD=heads.out_q_RHD[:, :0], out_RX=heads.out_RX[:, H * D :], is_in_place=False
    )
    large_projection.norm_qkv_rotate(x, numbers(2 * K * D, E), 1e-6, no_queries, **options)


if __name__ == "__main__":
    main()
