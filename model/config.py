"""Reads config.json and generation_config.json into one checked value.

Reads the spellings of transformers 4 and 5, and refuses what the layers here cannot compute. Knows
nothing about tensors, and imports no torch: the scheduler service uses it too.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from model.errors import ModelFolderError
from model.folder import CONFIG_FILE
from model.rope_config import RopeConfig, read_rope_config

GENERATION_CONFIG_FILE = "generation_config.json"
DTYPES = ("float32", "bfloat16", "float16")
ARCHITECTURE_OF_MODEL_TYPE = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
QWEN3_DEFAULT_HEAD_DIM = 128

T = TypeVar("T", int, float, bool, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shapes and options of one model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Not hidden_size / num_heads in every model."""
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    is_tied: bool
    """The output head is the embedding table."""
    has_qk_norm: bool
    has_attention_bias: bool
    """On q, k, v and o, all four."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    """The checkpoint's own: one of DTYPES."""

    def __post_init__(self) -> None:
        """Refuse shapes that fit no model."""
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ModelFolderError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ModelFolderError(
                f"num_heads is {self.num_heads}, but must be a multiple of num_kv_heads, {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ModelFolderError(f"head_dim is {self.head_dim}, but RoPE needs an even one")
        for token_id in self.eos_token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise ModelFolderError(
                    f"eos_token_id is {token_id}, but must be below vocab_size, {self.vocab_size}"
                )


def read_model_config(folder: Path) -> ModelConfig:
    """Read a Hugging Face model folder's configuration.

    Raises:
        ModelFolderError: a file is missing or broken, or asks for what is not supported.
    """
    path = folder / CONFIG_FILE
    raw = _read_json(path)
    with _naming(path):
        config = _parse(raw)
    eos_path, value = _find_eos_token_id(folder, raw)
    with _naming(eos_path):
        return replace(config, eos_token_ids=_check_eos_token_ids(value))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file that holds what is refused."""
    try:
        yield
    except ModelFolderError as error:
        raise ModelFolderError(f"{path}: {error}") from error


def _parse(raw: dict[str, Any]) -> ModelConfig:
    architecture = _architecture(raw)
    _refuse_unsupported(raw)
    is_qwen3 = architecture == "Qwen3ForCausalLM"
    hidden_size = _get(raw, "hidden_size", int)
    num_layers = _get(raw, "num_hidden_layers", int)
    num_heads = _get(raw, "num_attention_heads", int)
    _refuse_sliding_window(raw, num_layers)
    default_head_dim = QWEN3_DEFAULT_HEAD_DIM if is_qwen3 else hidden_size // max(num_heads, 1)
    return ModelConfig(
        architecture=architecture,
        vocab_size=_get(raw, "vocab_size", int),
        hidden_size=hidden_size,
        intermediate_size=_get(raw, "intermediate_size", int),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_get(raw, "num_key_value_heads", int, default=num_heads),
        head_dim=_get(raw, "head_dim", int, default=default_head_dim),
        rms_norm_eps=_get(raw, "rms_norm_eps", float, default=1e-6),
        rope=read_rope_config(raw),
        max_position_embeddings=_get(raw, "max_position_embeddings", int),
        is_tied=_get(raw, "tie_word_embeddings", bool, default=False),
        has_qk_norm=is_qwen3,
        has_attention_bias=_get(raw, "attention_bias", bool, default=False),
        eos_token_ids=(),
        dtype=_dtype(raw),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error}") from error
    except ValueError as error:  # broken JSON or broken UTF-8
        raise ModelFolderError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} holds a {type(value).__name__}, but must hold an object")
    return value


def _get(raw: dict[str, Any], key: str, kind: type[T], *, default: T | None = None) -> T:
    """Return ``raw[key]``, checked to be of ``kind``; the default where it is missing or null."""
    value = raw.get(key)
    if value is None:
        if default is None:
            raise ModelFolderError(f"{key} is missing")
        return default
    if kind is float and type(value) is int:
        value = float(value)
    # type() and not isinstance(): true and false are no numbers here.
    if type(value) is not kind:
        raise ModelFolderError(f"{key} is {value!r}, but must be of type {kind.__name__}")
    return value


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or [ARCHITECTURE_OF_MODEL_TYPE.get(raw.get("model_type", ""), "")]
    supported = tuple(ARCHITECTURE_OF_MODEL_TYPE.values())
    if not isinstance(names, list) or len(names) != 1 or names[0] not in supported:
        told = raw.get("architectures") or f"model_type {raw.get('model_type')!r}"
        raise ModelFolderError(f"architecture {told} is not supported; supported are {', '.join(supported)}")
    return str(names[0])


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    """Refuse options that would change the mathematics and are not computed here."""
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelFolderError(f"hidden_act {activation!r} is not supported; supported is 'silu'")
    if raw.get("mlp_bias"):
        raise ModelFolderError("mlp_bias is not supported")
    if raw.get("quantization_config") is not None:
        raise ModelFolderError("quantization_config is not supported: give an unquantized checkpoint")


def _refuse_sliding_window(raw: dict[str, Any], num_layers: int) -> None:
    """Refuse a sliding window that some layer uses; many configs carry an unused one."""
    if any(kind != "full_attention" for kind in raw.get("layer_types") or []):
        raise ModelFolderError(f"layer_types {raw['layer_types']} is not supported: only full attention is")
    first_layer = raw.get("max_window_layers")
    is_used = raw.get("use_sliding_window") and raw.get("sliding_window") is not None
    if is_used and (first_layer is None or first_layer < num_layers):
        raise ModelFolderError(f"sliding_window {raw['sliding_window']} is in use, which is not supported")


def _dtype(raw: dict[str, Any]) -> str:
    """Return the checkpoint's dtype: "dtype" in transformers 5, "torch_dtype" in 4."""
    value = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if value not in DTYPES:
        raise ModelFolderError(f"dtype {value!r} is not supported; supported are {', '.join(DTYPES)}")
    return value


def _find_eos_token_id(folder: Path, raw: dict[str, Any]) -> tuple[Path, object]:
    """Find what generation_config.json says, or else config.json; return which one, and what."""
    path = folder / GENERATION_CONFIG_FILE
    value = _read_json(path).get("eos_token_id") if path.exists() else None
    return (folder / CONFIG_FILE, raw.get("eos_token_id")) if value is None else (path, value)


def _check_eos_token_ids(value: object) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token_id) is not int for token_id in ids):
        raise ModelFolderError(f"eos_token_id is {value!r}, but must be an integer or a list of integers")
    return tuple(ids)
