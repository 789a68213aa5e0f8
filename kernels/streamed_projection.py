"""A projection of few rows to so many outputs that each multiprocessor has one program of many tiles.

Weights flow without a gap from tile to tile, the first ones into the L2 cache before the kernel in front has
ended. On Hopper GPUs kernels/large_head.py does it for more rows. A norm is not part of it. Knows nothing
about models.

Shapes: R rows, I inputs, O outputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options
from kernels.gpu import HOPPER_SHARED_BYTES, num_multiprocessors, shared_bytes
from kernels.large_head import BLOCK_O, HeadTile, choose_large_tile, large_head
from kernels.logit_summary import LogitSummary, load_wishes, summarize_piece, summary_arguments
from kernels.small_batch_ref import check_projection
from kernels.tiled_projection import ALIGNMENT_BYTES, is_aligned
from kernels.tiled_projection_kernel import read_ahead

NUM_INTERPRETED_PROGRAMS = 3
ITEM_BYTES = 2
"""Of numbers that tensor cores multiply, and a tile has room for."""
MIN_ROWS = 16
MAX_ROWS = 64
"""That a tile has room for here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedTile:
    """One launch's shape. Blocks are powers of two."""

    block_rows: int
    block_outputs: int
    block_inputs: int
    num_stages: int
    num_warps: int = 4
    num_ahead: int = 512
    """Inputs of the first tile whose weights the L2 cache is to read while the kernel in front runs."""


@triton.jit(do_not_specialize=["num_rows"])
def streamed_projection_kernel(
    x, weight, weight_ptr, out_ptr, lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr, top_p_ptr,
    min_p_ptr, seed_ptr, maximum_ptr, bound_ptr, sum_ptr, num_chunks, out_stride, num_rows,
    I: tl.constexpr, O: tl.constexpr,  # noqa: E741
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, STAGES: tl.constexpr,
    NUM_AHEAD: tl.constexpr, IS_SAMPLED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: every so many-th tile of BLOCK_O outputs, of all rows."""
    if maximum_ptr is not None:
        wishes = load_wishes(
            tl.arange(0, BLOCK_R), lanes_ptr, positions_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
            seed_ptr, num_rows, O, num_chunks, IS_SAMPLED,
        )  # fmt: skip
    NUM_STEPS: tl.constexpr = (I + BLOCK_I - 1) // BLOCK_I
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    if PDL:
        gdc_launch_dependents()
        NUM_BYTES: tl.constexpr = weight_ptr.dtype.element_ty.primitive_bitwidth // 8
        first_ptr = weight_ptr + (program * BLOCK_O).to(tl.int64) * I
        read_ahead(
            first_ptr, tl.minimum(O - program * BLOCK_O, BLOCK_O), I * NUM_BYTES, NUM_AHEAD * NUM_BYTES
        )
        gdc_wait()
    num_tiles = tl.cdiv(tl.cdiv(O, BLOCK_O) - program, num_programs)
    product = tl.zeros((BLOCK_O, BLOCK_R), tl.float32)
    for step in tl.range(0, num_tiles * NUM_STEPS, num_stages=STAGES):
        first_column = (program + step // NUM_STEPS * num_programs) * BLOCK_O
        inner = step % NUM_STEPS * BLOCK_I
        weights = weight.load([first_column, inner])
        factors = x.load([0, inner])
        product = tl.dot(weights, tl.trans(factors), product, input_precision="ieee")
        if step % NUM_STEPS == NUM_STEPS - 1:
            row, column = tl.arange(0, BLOCK_R), first_column + tl.arange(0, BLOCK_O)
            out = tl.trans(product).to(out_ptr.dtype.element_ty)
            at = out_ptr + row.to(tl.int64)[:, None] * out_stride + column[None, :]
            tl.store(at, out, mask=(row < num_rows)[:, None] & (column < O)[None, :])
            if maximum_ptr is not None:
                summarize_piece(
                    out.to(tl.float32), first_column, wishes, maximum_ptr, bound_ptr, sum_ptr, O, IS_SAMPLED
                )
            product = tl.zeros((BLOCK_O, BLOCK_R), tl.float32)


def streamed_projection(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    summary: LogitSummary | None = None,
    is_dependent: bool = False,
    tile: StreamedTile | None = None,
) -> torch.Tensor:
    """Return x @ weight.T; with a summary, of a row without a limit perhaps only what may be drawn.

    Args:
        x_RI: as many rows as can_stream takes.
        weight_OI: one that it takes, of x's dtype.
        out: (R, O), of any float dtype. None: allocated, of x's dtype.
        summary: written as well. Its lanes, positions and tables are read at once: they must have been
            written before the kernel in front began.
        is_dependent: let it start while the kernel before it runs, where the device can.
        tile: instead of choose_streamed_tile's, for at most MAX_ROWS rows.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    out_RO = x_RI.new_empty((len(x_RI), len(weight_OI))) if out is None else out
    check_projection(x_RI, weight_OI, None, None, out_RO, len(weight_OI))
    head_tile = None if tile is not None else _choose_large_tile(x_RI, weight_OI, out_RO, summary)
    if head_tile is not None:
        return large_head(x_RI, weight_OI, out_RO, tile=head_tile, summary=summary, is_dependent=is_dependent)
    _check(x_RI, weight_OI)
    tile = tile or choose_streamed_tile(
        len(x_RI),
        len(weight_OI),
        num_programs=_num_programs(x_RI.device),
        block_outputs=None if summary is None else summary.piece_size,
    )
    assert summary is None or summary.piece_size == tile.block_outputs
    _launch(x_RI, weight_OI, out_RO, summary=summary, is_dependent=is_dependent, tile=tile)
    return out_RO


def _launch(
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    out_RO: torch.Tensor,
    *,
    summary: LogitSummary | None,
    is_dependent: bool,
    tile: StreamedTile,
) -> None:
    num_outputs, num_inputs = weight_OI.shape
    num_programs = min(triton.cdiv(num_outputs, tile.block_outputs), _num_programs(x_RI.device))
    streamed_projection_kernel[(num_programs,)](
        TensorDescriptor.from_tensor(x_RI, [tile.block_rows, tile.block_inputs]),
        TensorDescriptor.from_tensor(weight_OI, [tile.block_outputs, tile.block_inputs]),
        weight_OI,
        out_RO,
        *summary_arguments(summary),
        out_RO.stride(0),
        len(x_RI),
        I=num_inputs,
        O=num_outputs,
        IS_SAMPLED=summary is not None and summary.is_sampled,
        **_constants(tile, num_inputs),
        **launch_options(is_dependent and can_depend(x_RI.device)),
    )


def _constants(tile: StreamedTile, num_inputs: int) -> dict[str, int]:
    return {
        "BLOCK_R": tile.block_rows,
        "BLOCK_O": tile.block_outputs,
        "BLOCK_I": tile.block_inputs,
        "STAGES": tile.num_stages,
        "NUM_AHEAD": min(tile.num_ahead, num_inputs),
        "num_warps": tile.num_warps,
    }


def streamed_projection_ref(x_RI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """Return what streamed_projection does, in plain PyTorch and float32."""
    return x_RI.float() @ weight_OI.float().t()


def can_stream(weight_OI: torch.Tensor, num_rows: int = 1) -> bool:
    """Whether streamed_projection takes such a weight and so many rows: its device must have room."""
    if num_rows > MAX_ROWS:
        return choose_large_tile(weight_OI, num_rows) is not None
    has_room = shared_bytes(weight_OI.device) >= HOPPER_SHARED_BYTES
    is_plain = weight_OI.is_contiguous() and is_aligned(weight_OI)
    return has_room and is_plain and weight_OI.itemsize == ITEM_BYTES


def choose_streamed_tile(
    num_rows: int, num_outputs: int, *, num_programs: int, block_outputs: int | None = None
) -> StreamedTile:
    """Return tiles that give all programs about as many.

    At 1,024 inputs and 151,936 outputs on an H200 others of some ten were up to 1 us faster or slower.
    """
    block_rows = max(MIN_ROWS, triton.next_power_of_2(num_rows))
    # The larger where they are equal.
    block_outputs = block_outputs or min(
        (128, 64),
        key=lambda block: triton.cdiv(triton.cdiv(num_outputs, block), num_programs) * block,
    )
    return StreamedTile(
        block_rows=block_rows,
        block_outputs=block_outputs,
        block_inputs=128,
        num_stages=4 if block_outputs == 128 else 6,
    )


def _choose_large_tile(
    x_RI: torch.Tensor, weight_OI: torch.Tensor, out_RO: torch.Tensor, summary: LogitSummary | None
) -> HeadTile | None:
    """Return large_head's tile where that is the better way."""
    fits = is_aligned(x_RI) and is_aligned(out_RO) and out_RO.dtype == x_RI.dtype
    has_pieces = summary is None or summary.piece_size == BLOCK_O
    return choose_large_tile(weight_OI, len(x_RI)) if fits and has_pieces else None


def _check(x_RI: torch.Tensor, weight_OI: torch.Tensor) -> None:
    if len(x_RI) > MAX_ROWS or not can_stream(weight_OI) or not is_aligned(x_RI):
        raise ValueError(
            f"at most {MAX_ROWS} rows of numbers of {ITEM_BYTES} bytes, aligned to {ALIGNMENT_BYTES}, are "
            f"streamed, but these are {tuple(x_RI.shape)} and {tuple(weight_OI.shape)} of {x_RI.dtype}"
        )


def _num_programs(device: torch.device) -> int:
    """Return one a multiprocessor."""
    if device.type != "cuda":
        return NUM_INTERPRETED_PROGRAMS
    return num_multiprocessors(device)
