"""Turns the two numbers a decode row is uploaded as, lane and position, into all that a step needs.

Runs first in a captured decode step, so that the host uploads nothing else. Knows nothing about
models: tables are rows of numbers by lane.

Shapes: B rows, L lanes, P positions, M blocks a table.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import can_depend, gdc_launch_dependents, gdc_wait, launch_options

BLOCK_B = 128
NUM_WARPS = 4


@triton.jit(do_not_specialize=["num_rows"])
def prepare_decode_kernel(
    lanes_ptr,
    positions_ptr,
    token_pool_ptr,
    block_table_ptr,
    input_ids_ptr,
    slot_mapping_ptr,
    seq_lens_ptr,
    token_pool_stride,
    block_table_stride,
    num_rows,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BLOCK_B rows."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    is_row = row < num_rows
    lane = tl.load(lanes_ptr + row, mask=is_row, other=-1).to(tl.int64)
    position = tl.load(positions_ptr + row, mask=is_row, other=0)
    is_live = lane >= 0
    input_id = tl.load(token_pool_ptr + lane * token_pool_stride + position, mask=is_live, other=0)
    column = position // BLOCK_SIZE
    # int64 before the product: block_id * block_size passes 2**31 in a large pool.
    block_id = tl.load(block_table_ptr + lane * block_table_stride + column, mask=is_live, other=0)
    slot = block_id.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(input_ids_ptr + row, input_id, mask=is_row)
    tl.store(slot_mapping_ptr + row, tl.where(is_live, slot, -1), mask=is_row)
    tl.store(seq_lens_ptr + row, tl.where(is_live, position + 1, 0), mask=is_row)


def prepare_decode(
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    block_size: int,
    input_ids_B: torch.Tensor,
    slot_mapping_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    *,
    is_dependent: bool = False,
) -> None:
    """Write each row's input id, KV slot and context length.

    Args:
        lanes_B: int32; a negative lane is padding: input id 0, slot -1, length 0.
        positions_B: int32, absolute index of the token to compute; padding's is not read.
        token_pool_LP: int32, each lane's tokens.
        block_table_LM: int32, each lane's block ids.
        block_size: tokens a block.
        input_ids_B: int32, written.
        slot_mapping_B: int64, written.
        seq_lens_B: int32, written: the context length after the step.
        is_dependent: let it start while the kernel before it runs, where the device can.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    check_prepare_decode(
        lanes_B, positions_B, token_pool_LP, block_table_LM, input_ids_B, slot_mapping_B, seq_lens_B
    )
    num_rows = len(lanes_B)
    if num_rows == 0:
        return
    prepare_decode_kernel[(triton.cdiv(num_rows, BLOCK_B),)](
        lanes_B,
        positions_B,
        token_pool_LP,
        block_table_LM,
        input_ids_B,
        slot_mapping_B,
        seq_lens_B,
        token_pool_LP.stride(0),
        block_table_LM.stride(0),
        num_rows,
        BLOCK_SIZE=block_size,
        BLOCK_B=BLOCK_B,
        num_warps=NUM_WARPS,
        **launch_options(is_dependent and can_depend(lanes_B.device)),
    )


def prepare_decode_ref(
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return input_ids_B, slot_mapping_B and seq_lens_B as prepare_decode writes them."""
    is_live_B = lanes_B >= 0
    lane_B = lanes_B.long().clamp(min=0)
    position_B = positions_B.long().where(is_live_B, 0)
    block_id_B = block_table_LM[lane_B, position_B // block_size].long()
    slot_B = block_id_B * block_size + position_B % block_size
    return (
        token_pool_LP[lane_B, position_B].where(is_live_B, 0),
        slot_B.where(is_live_B, -1),
        (positions_B + 1).where(is_live_B, 0),
    )


def check_prepare_decode(
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    input_ids_B: torch.Tensor,
    slot_mapping_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    rows = (
        ("lanes", lanes_B, torch.int32),
        ("positions", positions_B, torch.int32),
        ("input_ids", input_ids_B, torch.int32),
        ("slot_mapping", slot_mapping_B, torch.int64),
        ("seq_lens", seq_lens_B, torch.int32),
    )
    for name, tensor_B, dtype in rows:
        if tensor_B.shape != lanes_B.shape or tensor_B.dtype != dtype or not tensor_B.is_contiguous():
            raise ValueError(
                f"{name} must be {dtype} of {tuple(lanes_B.shape)}, contiguous, "
                f"but is {tensor_B.dtype} of {tuple(tensor_B.shape)}"
            )
    for name, table in (("token_pool", token_pool_LP), ("block_table", block_table_LM)):
        if table.ndim != 2 or table.dtype != torch.int32 or table.stride(1) != 1:
            raise ValueError(
                f"{name} must be int32 of two dimensions, but is {table.dtype} of {tuple(table.shape)}"
            )
    if len(token_pool_LP) != len(block_table_LM):
        raise ValueError(
            f"token_pool has {len(token_pool_LP)} lanes, block_table {len(block_table_LM)}: must be equal"
        )
