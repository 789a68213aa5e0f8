"""What all layers of one forward pass share. Knows nothing about layers."""

from dataclasses import dataclass
from typing import Any

from model.forward_context import ForwardContext
from model.rope import RopeAngles


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Made once a forward pass, read by every layer."""

    context: ForwardContext
    plan: Any
    """The attention backend's own."""
    angles: RopeAngles
