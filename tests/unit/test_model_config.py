"""config.json in every spelling, what is refused, and how the refusal reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.config import ModelConfig, read_model_config
from model.errors import ModelFolderError
from model.rope_config import RopeConfig

# Qwen/Qwen3-0.6B as published (transformers 4), shortened to what matters and what misleads.
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA3_SCALING = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
# meta-llama/Llama-3.2-1B.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": LLAMA3_SCALING,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LLAMA3_ROPE = RopeConfig(
    rope_type="llama3",
    theta=500000.0,
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)


def _read(folder: Path, base: dict[str, Any], *drop: str, **change: Any) -> ModelConfig:
    config = {key: value for key, value in base.items() if key not in drop} | change
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_config(folder)


def test_qwen3_as_published(tmp_path: Path) -> None:
    assert _read(tmp_path, QWEN3) == ModelConfig(
        architecture="Qwen3ForCausalLM",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope=RopeConfig(rope_type="default", theta=1000000.0),
        max_position_embeddings=40960,
        is_tied=True,
        has_qk_norm=True,
        has_attention_bias=False,
        eos_token_ids=(151645,),
        dtype="bfloat16",
    )


def test_llama_as_published(tmp_path: Path) -> None:
    config = _read(tmp_path, LLAMA)
    assert config.rope == LLAMA3_ROPE
    assert not config.has_qk_norm
    assert config.head_dim == 64


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": {**LLAMA3_SCALING, "rope_theta": 500000.0}, "rope_theta": None},
        {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500000.0}, "rope_theta": None},
        {"rope_parameters": {"full_attention": {**LLAMA3_SCALING, "rope_theta": 500000.0}}},
        {"rope_scaling": {**LLAMA3_SCALING, "rope_type": None, "type": "llama3"}},
        # transformers 5 writes rope_parameters; what stands beside it is from before.
        {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500000.0}, "rope_theta": 1.0},
    ],
)
def test_every_form_of_rope_reads_the_same(tmp_path: Path, change: dict[str, Any]) -> None:
    base = {key: value for key, value in LLAMA.items() if key != "rope_scaling"}
    assert _read(tmp_path, base, **change).rope == LLAMA3_ROPE


def test_rope_parameters_of_the_default_type(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 1000000}
    config = _read(tmp_path, QWEN3, "rope_theta", "rope_scaling", rope_parameters=parameters)
    assert config.rope == RopeConfig(theta=1000000.0)


def test_no_rope_field_at_all_is_the_formats_default(tmp_path: Path) -> None:
    assert _read(tmp_path, LLAMA, "rope_theta", "rope_scaling").rope == RopeConfig(theta=10000.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn' is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": None}, "rope field rope_theta is None"),
        ({"rope_theta": "big"}, "rope field rope_theta is 'big', but must be a number"),
        ({"rope_theta": 0}, "rope_theta is 0.0, but must be above 0"),
        ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3', but must be an object"),
        ({"rope_scaling": {**LLAMA3_SCALING, "factor": None}}, "rope field factor is None"),
        ({"rope_scaling": {**LLAMA3_SCALING, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
        ({"rope_scaling": {**LLAMA3_SCALING, "factor": 0.0}}, "llama3 rope needs factors"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        (
            {"architectures": ["MistralForCausalLM"]},
            r"architecture \['MistralForCausalLM'\] is not supported",
        ),
        ({"architectures": None, "model_type": "gpt2"}, "architecture model_type 'gpt2' is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types .* is not supported"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": "many"}, "vocab_size is 'many', but must be of type int"),
        ({"hidden_size": 2048.5}, "hidden_size is 2048.5, but must be of type int"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, but must be of type int"),
        ({"num_hidden_layers": 0}, "num_layers is 0, but must be at least 1"),
        ({"num_key_value_heads": 5}, "num_heads is 32, but must be a multiple of num_kv_heads, 5"),
        ({"head_dim": 63}, "head_dim is 63, but RoPE needs an even one"),
        ({"eos_token_id": 128256}, "eos_token_id is 128256, but must be below vocab_size, 128256"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', but must be an integer"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFolderError, match=message) as caught:
        _read(tmp_path, LLAMA, **change)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_sliding_window_is_refused_only_where_a_layer_uses_it(tmp_path: Path) -> None:
    used = {"use_sliding_window": True, "sliding_window": 4096}
    with pytest.raises(ModelFolderError, match="sliding_window 4096 is in use"):
        _read(tmp_path, QWEN3, **used, max_window_layers=27)
    assert _read(tmp_path, QWEN3, **used, max_window_layers=28).num_layers == 28
    assert _read(tmp_path, QWEN3, use_sliding_window=False, sliding_window=4096, max_window_layers=0)


def test_defaults_of_missing_fields(tmp_path: Path) -> None:
    llama = _read(
        tmp_path,
        LLAMA,
        "head_dim",
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
        "torch_dtype",
    )
    assert (llama.head_dim, llama.num_kv_heads, llama.rms_norm_eps) == (64, 32, 1e-6)
    assert not llama.is_tied
    assert llama.dtype == "float32"
    # Qwen3's own default, not 1024 / 16.
    assert _read(tmp_path, QWEN3, "head_dim").head_dim == 128


def test_architecture_from_model_type(tmp_path: Path) -> None:
    assert _read(tmp_path, QWEN3, "architectures").architecture == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    "change", [{"dtype": "float16"}, {"dtype": "torch.float16"}, {"dtype": None, "torch_dtype": "float16"}]
)
def test_dtype_in_both_spellings(tmp_path: Path, change: dict[str, Any]) -> None:
    assert _read(tmp_path, LLAMA, **change).dtype == "float16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        (
            '{"eos_token_id": "</s>"}',
            ": eos_token_id is '</s>', but must be an integer or a list of integers",
        ),
        ('{"eos_token_id": 128256}', ": eos_token_id is 128256, but must be below vocab_size, 128256"),
    ],
)
def test_a_broken_generation_config_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(text)
    with pytest.raises(ModelFolderError) as caught:
        _read(tmp_path, LLAMA)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "/config.json" not in str(caught.value)


def test_eos_ids_of_the_generation_config_come_first(tmp_path: Path) -> None:
    assert _read(tmp_path, LLAMA, eos_token_id=[1, 2]).eos_token_ids == (1, 2)
    assert _read(tmp_path, LLAMA, "eos_token_id").eos_token_ids == ()
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [128001, 128008]}))
    assert _read(tmp_path, LLAMA).eos_token_ids == (128001, 128008)
    path.write_text(json.dumps({"temperature": 0.6}))
    assert _read(tmp_path, LLAMA).eos_token_ids == (128001,)
    path.write_text("{")
    with pytest.raises(ModelFolderError, match=r"generation_config\.json is no JSON"):
        _read(tmp_path, LLAMA)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("[1]", "holds a list, but must hold an object"), (None, "cannot read")],
)
def test_a_broken_or_missing_file(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFolderError, match=message) as caught:
        read_model_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
