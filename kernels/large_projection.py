"""Projections of thousands of rows, fused with what stands around them, on Hopper GPUs.

The gated MLP's with its gate, and the QKV projection with all that stands between it and attention.
The norm in front has no weight here, as it is in the projection's: a factor of each row, whose squares are
summed while the tensor cores multiply it. Knows nothing about models.

Shapes: R rows, I inputs, O outputs, F numbers of a gated MLP, X = 2 * F: gate rows, then up rows; in a QKV
projection X = (H + 2 * K) * D, H query heads, K KV heads, D head dim.
"""

from functools import cache

import torch

from kernels.dependent_launch import can_depend, launch_options
from kernels.gluon_kernels import describe_tiles, large_gate_kernel, large_qkv_kernel, runs_gluon
from kernels.gpu import num_multiprocessors
from kernels.large_projection_ref import Heads
from kernels.qk_norm_rope_ref import check_qk_norm_rope_store
from kernels.small_batch_ref import check_projection, num_gated

BLOCK_R, BLOCK_O, BLOCK_I = 128, 256, 64
"""A tile's rows, weight rows and inputs of a stage; the kernels halve the first two."""
MOST_INPUTS = 2048
"""Measured are 1,024. The more there are, the less it matters what stands around a product."""
NUM_STAGES = 4
GROUP = 8
"""Blocks of rows that are computed together."""
MOST_SPAN = 8
"""Of tiles with the same rows: at 16,384 rows QKV takes 253 us with 1, 236 with 2, 226 with 4, 223 with 8."""
QKV_LEAD = 1
"""Stages that one warpgroup is ahead of the other, so that their ends of a tile do not coincide: at 16,384
rows QKV takes 232 us without it and 222 with it. 2 or 3 are no better, and gates and ups gain nothing."""
NUM_CONSUMERS = 2
HEAD_DIM = 128
OPTIONS = {"num_warps": 4, "maxnreg": 168}  # 12 warps with those that the kernels add


def can_project(weight_OI: torch.Tensor) -> bool:
    """Tell whether these kernels fit this weight and its device; of QKV, the heads have to fit, too."""
    num_outputs, num_inputs = weight_OI.shape
    is_whole = num_outputs % BLOCK_O == 0 and num_inputs % BLOCK_I == 0 and num_inputs <= MOST_INPUTS
    return is_whole and weight_OI.itemsize == 2 and runs_gluon(weight_OI.device)


def can_rotate(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Tell whether norm_qkv_rotate fits such heads: a tile is two of a kind."""
    return num_heads % 2 == num_kv_heads % 2 == 0 and head_dim == HEAD_DIM


def norm_gate_up_silu(
    x_RI: torch.Tensor,
    weight_XI: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Return out_RF = silu(gate) * up of the normalized x.

    Args:
        x_RI: rows may be strided; can_project says whether the weight fits.
        weight_XI: contiguous, of x's dtype.
        eps: added to the mean of squares.
        out: (R, F), of x's dtype.
        is_dependent: let it start while the kernel before it runs, where the device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    F, num_inputs = num_gated(weight_XI), x_RI.shape[1]
    check_projection(x_RI, weight_XI, None, None, out, F)
    grid, span = _grid(x_RI, weight_XI)
    large_gate_kernel[grid](
        describe_tiles(x_RI, BLOCK_R, BLOCK_I),
        describe_tiles(weight_XI.view(2, F, num_inputs), 2, BLOCK_O // 2, BLOCK_I),
        describe_tiles(out, BLOCK_R // NUM_CONSUMERS, BLOCK_O // 2),
        len(x_RI),
        span,
        eps,
        I=num_inputs,
        O=F,
        STAGES=NUM_STAGES,
        GROUP=GROUP,
        **OPTIONS,
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return out


def norm_qkv_rotate(
    x_RI: torch.Tensor, weight_XI: torch.Tensor, eps: float, heads: Heads, *, is_dependent: bool = False
) -> torch.Tensor:
    """Return the query heads of normalized x @ weight.T, ready for attention; write keys and values.

    What qk_norm_rope_store does to the product with in_place, rounded once less; can_project and can_rotate
    say whether it fits. A weight may have no query heads. is_dependent as for norm_gate_up_silu.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    num_heads, num_kv_heads = heads.out_q_RHD.shape[1], heads.key_cache_NSKD.shape[2]
    num_inputs = x_RI.shape[1]
    check_projection(x_RI, weight_XI, None, None, heads.out_RX, len(weight_XI))
    constants = (heads.positions_R, heads.cos_sin_PD, heads.q_weight_D, heads.k_weight_D)
    caches = (heads.key_cache_NSKD, heads.value_cache_NSKD, heads.slot_mapping_R)
    if not heads.cos_sin_PD.is_contiguous():
        raise ValueError(f"cos_sin must be contiguous, but has strides {heads.cos_sin_PD.stride()}")
    check_qk_norm_rope_store(heads.out_RX, *constants, *caches, heads.out_q_RHD, num_heads, num_kv_heads)
    block = (BLOCK_R // NUM_CONSUMERS, HEAD_DIM // 2)
    grid, span = _grid(x_RI, weight_XI)
    large_qkv_kernel[grid](
        describe_tiles(x_RI, BLOCK_R, BLOCK_I),
        describe_tiles(weight_XI.view(-1, BLOCK_O, num_inputs), 1, BLOCK_O, BLOCK_I),
        describe_tiles(heads.out_q_RHD.flatten(1), *block) if num_heads else None,
        describe_tiles(heads.out_RX, *block) if heads.is_in_place else None,
        *constants,
        *caches,
        len(x_RI),
        span,
        eps,
        heads.eps,
        I=num_inputs,
        H=num_heads,
        K=num_kv_heads,
        STAGES=NUM_STAGES,
        GROUP=GROUP,
        LEAD=QKV_LEAD if num_inputs >= NUM_STAGES * BLOCK_I else 0,
        **OPTIONS,
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )
    return heads.out_q_RHD


def _grid(x_RI: torch.Tensor, weight_OI: torch.Tensor) -> tuple[tuple[int], int]:
    """Return as many programs as run at once, and how many tiles each takes in a row."""
    num_row_blocks, num_column_blocks = -(-len(x_RI) // BLOCK_R), len(weight_OI) // BLOCK_O
    most = num_multiprocessors(x_RI.device)
    span = choose_span(num_row_blocks, num_column_blocks, most)
    return (min(num_row_blocks * num_column_blocks // span, most),), span


@cache
def choose_span(num_row_blocks: int, num_column_blocks: int, num_programs: int) -> int:
    """Return how many tiles of the same rows a program takes in a row: as many as keep programs as busy."""

    def num_rounds(span: int) -> int:
        num_spans = num_row_blocks * num_column_blocks // span
        return -(-num_spans // num_programs) * span

    spans = [span for span in range(1, MOST_SPAN + 1) if num_column_blocks % span == 0]
    return min(spans, key=lambda span: (num_rounds(span), -span))
