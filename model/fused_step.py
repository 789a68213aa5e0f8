"""One step as the fused forward pass is given it.

Knows nothing about layers.

Shapes: T packed tokens, R chosen ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention_backend import LaneAttentionBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedStep:
    """What all layers need of one step."""

    input_ids_T: torch.Tensor
    """int32."""
    positions_T: torch.Tensor
    """int32: each token's absolute index in its request."""
    slot_mapping_T: torch.Tensor
    """int64: each token's cell in the KV cache; a negative slot is skipped."""
    attention: LaneAttentionBackend
    attention_plan: Any
    """What the backend made of the step's rows."""
    is_decode: bool = False
    """Whether each token is a row of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTokens:
    """Tokens of a step whose hidden states are asked for: each the last one of its row."""

    rows_R: torch.Tensor
    """int32: which of the step's tokens. Written, like their step, by what is queued already."""
    step: FusedStep
    """The same tokens as decode rows; padding has slot -1."""


ChooseTokens = Callable[[], ChosenTokens]
"""Queues what makes them ready; called late: a device that had nothing to do waits for the first launch."""
