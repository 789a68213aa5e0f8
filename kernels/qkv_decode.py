"""From the QKV projection to attention's output for rows of one new token: checked launcher and reference.

One launch does what qk_norm_rope_store and paged_decode do in two. A row's result depends on the row and
the launch's configuration, never on its neighbours. Knows nothing about requests or graphs.

Shapes: B rows, X = (H + 2 * K) * D a row, H query heads, K KV heads, D head dim, P positions, L lanes,
M blocks a table, N blocks, S block size.
"""

import torch
import triton

from kernels.decode_config import DecodeConfig, DecodeWorkspace, choose_qkv_decode_config, fit_stages
from kernels.dependent_launch import can_depend, launch_options
from kernels.paged_checks import check_index, check_paged_attention
from kernels.paged_decode import LOG2_E, checked_workspace, launch_constants, paged_decode_ref
from kernels.qk_norm_rope_ref import check_qk_norm_rope_store, qk_norm_rope_store_ref
from kernels.qkv_decode_kernel import qkv_decode_kernel


def qkv_decode(
    qkv_BX: torch.Tensor,
    cos_sin_PD: torch.Tensor,
    q_weight_D: torch.Tensor | None,
    k_weight_D: torch.Tensor | None,
    eps: float,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_B: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    scale: float,
    *,
    out: torch.Tensor,
    workspace: DecodeWorkspace | None = None,
    config: DecodeConfig | None = None,
    is_dependent: bool = False,
) -> torch.Tensor:
    """Write each row's new key and value into its slot, and return its attention over its context.

    Projected rows, norms, angles and slots are as qk_norm_rope_store takes them, a row's position is its
    length - 1; tables, lanes, lengths, scale and workspace are as paged_decode takes them. What a cache
    holds at a row's new slot is not read. out (B, H, D) is contiguous, written and returned. config is
    chosen for the table's width where None. With is_dependent all but qkv_BX and the new cells is read
    before the last kernel has ended, where the device can; qkv_decode_kernel tells what that asks for.

    Raises:
        ValueError: shapes or dtypes do not fit each other, or the workspace is too small.
    """
    rows = (slot_mapping_B, block_table_LM, lanes_B, seq_lens_B)
    tensors = (qkv_BX, cos_sin_PD, q_weight_D, k_weight_D, key_cache_NSKD, value_cache_NSKD, *rows, out)
    _check(*tensors)
    if config is None:
        max_context_len = block_table_LM.shape[1] * key_cache_NSKD.shape[1]
        config = qkv_decode_config_for(len(qkv_BX), max_context_len, cache_NSKD=key_cache_NSKD)
    workspace = checked_workspace(workspace, out, key_cache_NSKD.shape[2], config)
    if len(qkv_BX):
        _launch(tensors, workspace, scale, eps, config, is_dependent=is_dependent)
    return out


def _check(
    qkv_BX, cos_sin_PD, q_weight_D, k_weight_D, key_cache_NSKD, value_cache_NSKD, slot_mapping_B,
    block_table_LM, lanes_B, seq_lens_B, out,
) -> None:  # fmt: skip
    check_paged_attention(out, key_cache_NSKD, value_cache_NSKD, block_table_LM)
    check_index("lanes", lanes_B, len(qkv_BX))
    check_index("seq_lens", seq_lens_B, len(qkv_BX))
    check_qk_norm_rope_store(
        qkv_BX, seq_lens_B, cos_sin_PD, q_weight_D, k_weight_D, key_cache_NSKD, value_cache_NSKD,
        slot_mapping_B, out, out.shape[1], key_cache_NSKD.shape[2],
    )  # fmt: skip
    if not out.is_contiguous():
        raise ValueError(f"out must be contiguous, but has strides {out.stride()}")


def qkv_decode_config_for(num_rows: int, max_context_len: int, *, cache_NSKD: torch.Tensor) -> DecodeConfig:
    """Choose the configuration for rows over this cache; see choose_qkv_decode_config."""
    num_kv_heads, head_dim = cache_NSKD.shape[2:]
    bytes_per_cell = triton.next_power_of_2(head_dim) * cache_NSKD.element_size()
    config = choose_qkv_decode_config(
        num_rows,
        max_context_len,
        num_kv_heads=num_kv_heads,
        bytes_per_cell=bytes_per_cell,
    )
    return fit_stages(config, cache_NSKD.device, bytes_per_cell=bytes_per_cell)


def _launch(
    tensors, workspace: DecodeWorkspace, scale: float, eps: float, config: DecodeConfig, *, is_dependent: bool
) -> None:
    qkv_BX, cos_sin_PD, key_cache_NSKD, block_table_LM, out = (tensors[index] for index in (0, 1, 4, 7, 10))
    num_rows, num_heads = out.shape[:2]
    qkv_decode_kernel[(num_rows * key_cache_NSKD.shape[2], config.num_splits)](
        *tensors,
        workspace.partial_X,
        workspace.lse_X,
        workspace.counters_X,
        scale * LOG2_E,
        eps,
        qkv_BX.stride(0),
        cos_sin_PD.stride(0),
        block_table_LM.stride(0),
        config.min_split_tiles,
        # As many as warps: each row of heads lies within one.
        ROWS=max(triton.next_power_of_2(num_heads // key_cache_NSKD.shape[2]), config.num_warps),
        **launch_constants(key_cache_NSKD, num_heads, config),
        **launch_options(is_dependent and can_depend(qkv_BX.device)),
    )


def qkv_decode_ref(
    qkv_BX: torch.Tensor,
    cos_sin_PD: torch.Tensor,
    q_weight_D: torch.Tensor | None,
    k_weight_D: torch.Tensor | None,
    eps: float,
    key_cache_NSKD: torch.Tensor,
    value_cache_NSKD: torch.Tensor,
    slot_mapping_B: torch.Tensor,
    block_table_LM: torch.Tensor,
    lanes_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return out_BHD and write the caches in plain PyTorch; every row that is no padding needs a slot."""
    num_kv_heads, head_dim = key_cache_NSKD.shape[2:]
    num_heads = qkv_BX.shape[1] // head_dim - 2 * num_kv_heads
    caches = (key_cache_NSKD, value_cache_NSKD)
    q_BHD = qk_norm_rope_store_ref(
        qkv_BX, seq_lens_B - 1, cos_sin_PD, q_weight_D, k_weight_D, eps, *caches, slot_mapping_B, num_heads,
        num_kv_heads,
    )  # fmt: skip
    return paged_decode_ref(q_BHD, *caches, block_table_LM, lanes_B, seq_lens_B, scale)
