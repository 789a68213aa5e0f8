"""Attention of one new token a row over its paged context: checked launcher and reference.

A row's result depends on the row and the launch's configuration, never on its neighbours. Many rows that
are not split go to hopper_decode, where it takes them. Knows nothing about requests or graphs.

Shapes: B rows, L lanes, M blocks a table, N blocks, S block size, H heads, K KV heads, D head dim,
C cells of a row's context, G heads a KV head.
Source: FlashDecoding (Dao et al., 2023).
"""

from dataclasses import replace

import torch
import triton

from kernels.decode_config import (
    DecodeConfig,
    DecodeWorkspace,
    choose_decode_config,
    fit_stages,
    make_decode_workspace,
)
from kernels.dependent_launch import can_depend, launch_options
from kernels.hopper_decode import can_use_hopper_decode, hopper_decode, suits_hopper_decode
from kernels.paged_checks import check_index, check_out, check_paged_attention, gather_cells
from kernels.paged_decode_kernel import paged_decode_kernel

LOG2_E = 1.4426950408889634


def paged_decode(
    q_BHD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    scale: float,
    *,
    order_B: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    config: DecodeConfig | None = None,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Return out_BHD: each row's one token's attention over its context.

    Args:
        q_BHD: contiguous in its heads and dims; in the cache's dtype.
        key_cache_NSKD: contiguous.
        value_cache_NSKD: like key_cache_NSKD.
        block_table_LM: int32; a lane's block ids in order; columns past its context are never read.
        lanes_B: int32; each row's row of the table; a negative one is padding: zeros come out.
        seq_lens_B: int32; each row's context length, the new token included; 0 is padding, too.
        scale: of the scores.
        order_B: int32; each row once, in the order in which programs start; which one changes no result.
        out: contiguous, like q_BHD; new where None.
        workspace: from make_decode_workspace; new where None and there are splits.
        config: chosen for the table's width where None; of hopper_decode's rows, only that they are whole.
        is_dependent: launch before the last kernel has ended; what is read early, all but queries and newest
            cells, must have been written before the last kernel let its dependents start.

    Raises:
        ValueError: shapes or dtypes do not fit each other, or the workspace is too small.
    """
    check_paged_attention(q_BHD, key_cache_NSKD, value_cache_NSKD, block_table_LM)
    _check_indices(len(q_BHD), lanes=lanes_B, seq_lens=seq_lens_B, order=order_B)
    max_context_len = block_table_LM.shape[1] * key_cache_NSKD.shape[1]
    config = config or decode_config_for(
        len(q_BHD), max_context_len, cache_NSKD=key_cache_NSKD, is_ordered=order_B is not None
    )
    out = torch.empty_like(q_BHD, memory_format=torch.contiguous_format) if out is None else out
    check_out(out, q_BHD)
    workspace = checked_workspace(workspace, q_BHD, key_cache_NSKD.shape[2], config)
    if len(q_BHD):
        _launch(
            (q_BHD, key_cache_NSKD, value_cache_NSKD, block_table_LM, lanes_B, seq_lens_B, order_B, out),
            workspace, scale, config, is_dependent=is_dependent,
        )  # fmt: skip
    return out


def _check_indices(num_rows: int, **indices: torch.Tensor | None) -> None:
    for name, index_B in indices.items():
        if index_B is not None:
            check_index(name, index_B, num_rows)


def decode_config_for(
    num_rows: int, max_context_len: int, *, cache_NSKD: torch.Tensor, is_ordered: bool = False
) -> DecodeConfig:
    """Choose the configuration for rows over this cache; see choose_decode_config."""
    num_kv_heads, head_dim = cache_NSKD.shape[2:]
    bytes_per_cell = triton.next_power_of_2(head_dim) * cache_NSKD.element_size()
    config = choose_decode_config(
        num_rows,
        max_context_len,
        num_kv_heads=num_kv_heads,
        bytes_per_cell=bytes_per_cell,
        is_ordered=is_ordered,
    )
    if is_ordered and suits_hopper_decode(cache_NSKD, num_rows):
        config = replace(config, num_splits=1)
    return fit_stages(config, cache_NSKD.device, bytes_per_cell=bytes_per_cell)


def checked_workspace(
    workspace: DecodeWorkspace | None, q_BHD: torch.Tensor, num_kv_heads: int, config: DecodeConfig
) -> DecodeWorkspace:
    """Return the workspace, or a new one where None; raise ValueError where it is too small."""
    num_rows, num_heads, head_dim = q_BHD.shape
    num_results = num_rows * num_heads * config.num_splits if config.num_splits > 1 else 0
    num_counters = num_rows * num_kv_heads if config.num_splits > 1 else 0
    if workspace is None:
        return make_decode_workspace(
            num_results, num_counters=num_counters, head_dim=head_dim, device=q_BHD.device
        )
    sizes = (workspace.partial_X.numel(), workspace.lse_X.numel(), workspace.counters_X.numel())
    needed = (num_results * head_dim, num_results, num_counters)
    if any(size < need for size, need in zip(sizes, needed, strict=True)):
        raise ValueError(f"the workspace holds {sizes} numbers, but this launch needs {needed}")
    return workspace


def _launch(
    tensors, workspace: DecodeWorkspace, scale: float, config: DecodeConfig, *, is_dependent: bool
) -> None:
    q_BHD, key_cache_NSKD, _, block_table_LM, *_, order_B, out = tensors
    num_rows, num_heads = q_BHD.shape[:2]
    is_dependent = is_dependent and can_depend(q_BHD.device)
    is_whole = order_B is not None and config.num_splits == 1
    if is_whole and can_use_hopper_decode(key_cache_NSKD, num_rows, num_heads=num_heads):
        hopper_decode(
            *tensors[:6], scale_log2=scale * LOG2_E, order_B=order_B, out=out, is_dependent=is_dependent
        )
        return
    paged_decode_kernel[(num_rows * key_cache_NSKD.shape[2], config.num_splits)](
        *tensors,
        workspace.partial_X,
        workspace.lse_X,
        workspace.counters_X,
        scale * LOG2_E,
        q_BHD.stride(0),
        block_table_LM.stride(0),
        **launch_constants(key_cache_NSKD, num_heads, config),
        **launch_options(is_dependent),
    )


def launch_constants(key_cache_NSKD: torch.Tensor, num_heads: int, config: DecodeConfig) -> dict[str, int]:
    """Return the constants of a decode attention kernel, and its warps."""
    block_size, num_kv_heads, head_dim = key_cache_NSKD.shape[1:]
    group = num_heads // num_kv_heads
    group_padded, dim_padded = triton.next_power_of_2(group), max(16, triton.next_power_of_2(head_dim))
    return {
        "BLOCK_SIZE": block_size,
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "GROUP_PADDED": group_padded,
        "HEAD_DIM": head_dim,
        "DIM_PADDED": dim_padded,
        "NUM_SPLITS": config.num_splits,
        # A joined chunk is held in registers: 64 a thread.
        "CHUNK": min(config.num_splits, max(1, 2048 * config.num_warps // (group_padded * dim_padded))),
        "TILE": config.tile_size,
        "NUM_STAGES": config.num_stages,
        "num_warps": config.num_warps,
    }


def paged_decode_ref(
    q_BHD: torch.Tensor,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return out_BHD in plain PyTorch, a loop over rows in float32; see paged_decode."""
    out_BHD = torch.zeros_like(q_BHD)
    for row, (lane, seq_len) in enumerate(zip(lanes_B.tolist(), seq_lens_B.tolist(), strict=True)):
        if lane < 0 or seq_len == 0:
            continue
        key_CKD = gather_cells(key_cache_NSKD, block_table_LM[lane], seq_len).float()
        value_CKD = gather_cells(value_cache_NSKD, block_table_LM[lane], seq_len).float()
        q_KGD = q_BHD[row].float().view(key_CKD.shape[1], -1, q_BHD.shape[2])
        weight_KGC = (torch.einsum("kgd,ckd->kgc", q_KGD, key_CKD) * scale).softmax(-1)
        out_BHD[row] = torch.einsum("kgc,ckd->kgd", weight_KGC, value_CKD).flatten(0, 1).to(q_BHD.dtype)
    return out_BHD
