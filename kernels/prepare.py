"""Turns the two numbers that a token is uploaded as, lane and position, into what a step computes with.

Runs first in a step with prompts; begin_step does the same for decode rows, and more. Knows nothing about
models: tables are rows of numbers by lane.

Shapes: T tokens, L lanes, P positions, M blocks a table.
"""

import torch
import triton
import triton.language as tl

BLOCK_T = 128
NUM_WARPS = 4


@triton.jit
def store_prepared(
    row, is_row, is_live, position, input_id, block_id, input_ids_ptr, slot_mapping_ptr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Write rows' input ids and KV slots; -1 is that of padding."""
    # int64 before the product: block_id * block_size passes 2**31 in a large pool.
    slot = block_id.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(input_ids_ptr + row, input_id, mask=is_row)
    tl.store(slot_mapping_ptr + row, tl.where(is_live, slot, -1), mask=is_row)


@triton.jit(do_not_specialize=["num_tokens"])
def prepare_tokens_kernel(
    lanes_ptr,
    positions_ptr,
    token_pool_ptr,
    block_table_ptr,
    input_ids_ptr,
    slot_mapping_ptr,
    token_pool_stride,
    block_table_stride,
    num_tokens,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """One program: BLOCK_T tokens."""
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    is_row = row < num_tokens
    lane = tl.load(lanes_ptr + row, mask=is_row, other=-1).to(tl.int64)
    position = tl.load(positions_ptr + row, mask=is_row, other=0)
    is_live = lane >= 0
    input_id = tl.load(token_pool_ptr + lane * token_pool_stride + position, mask=is_live, other=0)
    column = position // BLOCK_SIZE
    block_id = tl.load(block_table_ptr + lane * block_table_stride + column, mask=is_live, other=0)
    store_prepared(
        row, is_row, is_live, position, input_id, block_id, input_ids_ptr, slot_mapping_ptr, BLOCK_SIZE
    )


def prepare_tokens(
    lanes_T: torch.Tensor,
    positions_T: torch.Tensor,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    block_size: int,
    input_ids_T: torch.Tensor,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Write each token's input id and KV slot.

    Args:
        lanes_T: int32; a negative lane is padding: input id 0, slot -1.
        positions_T: int32, absolute index of the token to compute; padding's is not read.
        token_pool_LP: int32, each lane's tokens.
        block_table_LM: int32, each lane's block ids.
        block_size: tokens a block.
        input_ids_T: int32, written.
        slot_mapping_T: int64, written.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    check_prepare_tokens(lanes_T, positions_T, token_pool_LP, block_table_LM, input_ids_T, slot_mapping_T)
    num_tokens = len(lanes_T)
    if num_tokens == 0:
        return
    prepare_tokens_kernel[(triton.cdiv(num_tokens, BLOCK_T),)](
        lanes_T,
        positions_T,
        token_pool_LP,
        block_table_LM,
        input_ids_T,
        slot_mapping_T,
        token_pool_LP.stride(0),
        block_table_LM.stride(0),
        num_tokens,
        BLOCK_SIZE=block_size,
        BLOCK_T=BLOCK_T,
        num_warps=NUM_WARPS,
    )


def prepare_tokens_ref(
    lanes_T: torch.Tensor,
    positions_T: torch.Tensor,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input_ids_T and slot_mapping_T as prepare_tokens writes them."""
    is_live_T = lanes_T >= 0
    lane_T = lanes_T.long().clamp(min=0)
    position_T = positions_T.long().where(is_live_T, 0)
    block_id_T = block_table_LM[lane_T, position_T // block_size].long()
    slot_T = block_id_T * block_size + position_T % block_size
    return token_pool_LP[lane_T, position_T].where(is_live_T, 0), slot_T.where(is_live_T, -1)


def check_prepare_tokens(
    lanes_T: torch.Tensor,
    positions_T: torch.Tensor,
    token_pool_LP: torch.Tensor,
    block_table_LM: torch.Tensor,
    input_ids_T: torch.Tensor,
    slot_mapping_T: torch.Tensor,
) -> None:
    """Raise ValueError where the arguments do not fit each other."""
    rows = (
        ("lanes", lanes_T, torch.int32),
        ("positions", positions_T, torch.int32),
        ("input_ids", input_ids_T, torch.int32),
        ("slot_mapping", slot_mapping_T, torch.int64),
    )
    for name, tensor_T, dtype in rows:
        if tensor_T.shape != lanes_T.shape or tensor_T.dtype != dtype or not tensor_T.is_contiguous():
            raise ValueError(
                f"{name} must be {dtype} of {tuple(lanes_T.shape)}, contiguous, "
                f"but is {tensor_T.dtype} of {tuple(tensor_T.shape)}"
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
