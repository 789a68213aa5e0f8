"""Attention over a paged KV cache behind one signature, whichever kernels do it.

Knows nothing about models or requests. A backend plans once a step what all layers share (masks,
gather indices), then stores and attends once a layer.

Shapes: T packed tokens, B rows, M blocks a table, N blocks, S block size, H heads, K KV heads, D dim.
"""

from typing import Any, Protocol

import torch

from kernels.paged_attention import TorchAttentionBackend

BACKEND_NAMES = ("torch",)
PLANNED_BACKEND_NAMES = ("triton", "flash-attn")


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
    ) -> torch.Tensor:
        """Return out_THD: each token's causal attention over its row's context, scaled by D**-0.5."""


def make_attention_backend(name: str) -> AttentionBackend:
    """Return the backend of this name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name == "torch":
        return TorchAttentionBackend()
    known = ", ".join(BACKEND_NAMES)
    if name in PLANNED_BACKEND_NAMES:
        raise ValueError(f"attention backend {name!r} does not exist yet; choose from: {known}")
    raise ValueError(f"unknown attention backend {name!r}; choose from: {known}")
