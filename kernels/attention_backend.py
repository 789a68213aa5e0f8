"""Attention over a paged KV cache behind one signature, whichever kernels do it.

Knows nothing about models or requests. A backend plans once a step what all layers share (masks,
gather indices), then stores and attends once a layer. Which of them can be had is found when one is
asked for.

Shapes: T packed tokens, B rows, M blocks a table, N blocks, S block size, H heads, K KV heads, D dim.
"""

from typing import TYPE_CHECKING, Any, Protocol

import torch

from kernels.decode_config import DecodeWorkspace
from kernels.lane_step import LaneStep
from kernels.paged_attention import TorchAttentionBackend
from kernels.paged_checks import MIN_BLOCK_SIZE

if TYPE_CHECKING:  # a machine without Triton has no fused steps
    from kernels.qkv_rows import QkvRows

LANE_BACKEND_NAMES = ("triton", "flash-attn")
BACKEND_NAMES = ("torch", *LANE_BACKEND_NAMES)
BLOCK_SIZE_MULTIPLES = {"triton": 1, "flash-attn": 256}


class StepMetadata(Protocol):
    """What a backend reads of a step; model.forward_context.ForwardContext describes each field."""

    @property
    def slot_mapping_T(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def cu_seqlens_q(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def seq_lens_B(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def block_table_BM(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def query_lens(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def context_lens(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def num_decode_rows(self) -> int: ...  # noqa: D102
    @property
    def kv_caches(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]: ...  # noqa: D102


class AttentionBackend(Protocol):
    """Writes K and V into a paged cache and attends to it."""

    @property
    def name(self) -> str:
        """The name that flags and hellos use."""

    def plan(self, step: StepMetadata) -> Any:
        """Return what all layers of this step share; only this backend reads it."""

    def store(
        self,
        key_TKD: torch.Tensor,
        value_TKD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: Any,
    ) -> None:
        """Write each token's K and V into its slot; negative slots are skipped."""

    def attend(
        self,
        q_THD: torch.Tensor,
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: Any,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return out_THD: each token's causal attention over its row's context, scaled by D**-0.5.

        It is written to ``out``, contiguous and like q_THD, where that is given.
        """


class LaneAttentionBackend(AttentionBackend, Protocol):
    """A backend for steps whose tables come by lane, whose decode rows are fit for capture in a graph."""

    @property
    def captures_prefill(self) -> bool:
        """Whether prefill rows are fit for capture, too, where tiles are given."""

    def plan_lanes(self, step: LaneStep, *, slot_mapping_T: torch.Tensor | None = None) -> Any:
        """Return what all layers of this step share; slots are needed only where store is called."""

    def attend_qkv(
        self,
        rows: "QkvRows",
        key_cache_NSKD: torch.Tensor,
        value_cache_NSKD: torch.Tensor,
        plan: Any,
        *,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Write each token's K and V into its slot, and return out_THD as attend does."""


def make_attention_backend(name: str, *, block_size: int | None = None) -> AttentionBackend:
    """Return the backend of this name.

    Args:
        name: one of BACKEND_NAMES.
        block_size: the KV cache's, checked where given.

    Raises:
        ValueError: there is none, it is not installed, or it has no such block size; the message
            says what to do.
    """
    if name == "torch":
        return TorchAttentionBackend()
    return make_lane_backend(name, block_size=block_size)


def make_lane_backend(
    name: str, *, block_size: int | None = None, workspace: DecodeWorkspace | None = None
) -> LaneAttentionBackend:
    """Return the backend of this name for steps by lane: one of LANE_BACKEND_NAMES.

    Args:
        name: one of LANE_BACKEND_NAMES.
        block_size: the KV cache's, checked where given.
        workspace: where decode rows are split; a captured graph needs one with triton.

    Raises:
        ValueError: as make_attention_backend does.
    """
    if name not in LANE_BACKEND_NAMES:
        known = ", ".join(LANE_BACKEND_NAMES if name == "torch" else BACKEND_NAMES)
        raise ValueError(f"unknown attention backend {name!r}; choose from: {known}")
    multiple = BLOCK_SIZE_MULTIPLES[name]
    if block_size is not None and (block_size < MIN_BLOCK_SIZE or block_size % multiple):
        raise ValueError(
            f"attention backend {name!r} needs a block size of at least {MIN_BLOCK_SIZE} that is a "
            f"multiple of {multiple}, but it is {block_size}"
        )
    # Imported only when asked for: a machine without a GPU needs none of it.
    try:
        if name == "triton":
            from kernels.triton_attention import TritonAttentionBackend  # noqa: PLC0415

            return TritonAttentionBackend(workspace)
        from kernels.flash_attention import FlashAttentionBackend  # noqa: PLC0415

        return FlashAttentionBackend()
    except ImportError as error:
        package = name if error.name == "flash_attn" else "triton"
        raise ValueError(
            f"attention backend {name!r} needs a package that cannot be imported: "
            f"pip install {package} ({error})"
        ) from error
