"""Reads how rotary position embeddings are scaled, from every form that config.json knows.

Forms: ``rope_theta`` beside ``rope_scaling`` (transformers 4, with "type" or "rope_type"),
``rope_parameters`` (transformers 5), and that again as one entry a layer type. Knows no torch.
"""

from dataclasses import dataclass
from typing import Any

from model.errors import ModelFolderError

ROPE_TYPES = ("default", "llama3")
FORMAT_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Base and scaling of the rotary angles; the last four count for llama3 only."""

    rope_type: str = "default"
    theta: float = FORMAT_DEFAULT_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0

    def __post_init__(self) -> None:
        """Refuse what no angle can be computed from."""
        if self.rope_type not in ROPE_TYPES:
            raise ModelFolderError(
                f"rope type {self.rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}"
            )
        if self.theta <= 0:
            raise ModelFolderError(f"rope_theta is {self.theta}, but must be above 0")
        if self.rope_type != "llama3":
            return
        if self.factor <= 0 or self.low_freq_factor <= 0 or self.original_max_position_embeddings < 1:
            raise ModelFolderError(f"llama3 rope needs factors and lengths above 0, but has {self}")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ModelFolderError(
                f"rope high_freq_factor is {self.high_freq_factor}, "
                f"but must be above low_freq_factor, {self.low_freq_factor}"
            )


def read_rope_config(raw: dict[str, Any]) -> RopeConfig:
    """Return the scaling that a whole config.json asks for.

    Raises:
        ModelFolderError: the rope type is not supported, or one of its fields is missing.
    """
    fields = _rope_fields(raw)
    if fields is None and raw.get("rope_theta") is None:
        # Configs from before either field existed: the format's own default, as transformers takes it.
        return RopeConfig()
    fields = fields or {}
    theta = _number(fields if fields.get("rope_theta") is not None else raw, "rope_theta")
    partial = fields.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        raise ModelFolderError(f"partial_rotary_factor {partial} is not supported")
    rope_type = fields.get("rope_type") or fields.get("type") or "default"
    if rope_type != "llama3":
        return RopeConfig(rope_type=str(rope_type), theta=theta)
    return RopeConfig(
        rope_type="llama3",
        theta=theta,
        factor=_number(fields, "factor"),
        low_freq_factor=_number(fields, "low_freq_factor"),
        high_freq_factor=_number(fields, "high_freq_factor"),
        original_max_position_embeddings=int(_number(fields, "original_max_position_embeddings")),
    )


def _rope_fields(raw: dict[str, Any]) -> dict[str, Any] | None:
    """Return the one dict of rope fields, wherever it stands; None where there is none."""
    for key in ("rope_parameters", "rope_scaling"):
        value = raw.get(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise ModelFolderError(f"{key} is {value!r}, but must be an object")
        by_layer_type = value.get("full_attention")
        return by_layer_type if isinstance(by_layer_type, dict) else value
    return None


def _number(fields: dict[str, Any], key: str) -> float:
    value = fields.get(key)
    if type(value) not in (int, float):
        raise ModelFolderError(f"rope field {key} is {value!r}, but must be a number")
    return float(value)  # type: ignore[arg-type]
