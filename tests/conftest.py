"""Checkpoints that tests make for themselves: tiny random models with a byte-level tokenizer.

Knows nothing about our own packages: everything here is made by transformers and tokenizers, so
that what we read is what others write. torch is imported only when a checkpoint is asked for.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EOS_TOKEN = "<|im_end|>"
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", EOS_TOKEN]
VOCAB_SIZE = 320
TOKENIZER_TEXT = (
    "The scheduler decides which requests run and the worker runs them. A block holds the keys and "
    "values of sixteen tokens. What is the capital of France? The capital of France is Paris, and "
    "the answer streams back to the client as it is made, one token after the other."
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointShape:
    """One tiny model: what its config says and how its files are written."""

    architecture: str
    config: dict[str, Any]
    is_transformers_4: bool = False
    """config.json in the spelling of transformers 4: rope_theta, rope_scaling, torch_dtype."""
    max_shard_size: str = "1GB"


def _shape(num_heads: int, num_kv_heads: int, head_dim: int, hidden_size: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden_size,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        # The usual 0.02 makes a tiny model repeat one greedy token.
        "initializer_range": 0.3,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        **more,
    }


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 100000.0}
SHAPES = {
    "qwen3_tiny": CheckpointShape(architecture="qwen3", config=_shape(4, 2, 16, 64)),
    "qwen3_gqa3": CheckpointShape(
        architecture="qwen3",
        config=_shape(6, 2, 16, 48, rope_parameters=DEFAULT_ROPE, attention_bias=True),
    ),
    # For kernels in Triton's interpreter, where a layer is long.
    "qwen3_one_layer": CheckpointShape(
        architecture="qwen3", config=_shape(3, 1, 16, 48, num_hidden_layers=1)
    ),
    "qwen3_untied_sharded": CheckpointShape(
        architecture="qwen3",
        config=_shape(4, 1, 32, 64, tie_word_embeddings=False, num_hidden_layers=3),
        is_transformers_4=True,
        max_shard_size="100KB",
    ),
    "llama3_rope": CheckpointShape(
        architecture="llama",
        config=_shape(6, 2, 8, 48, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=False),
        is_transformers_4=True,
    ),
    "llama_tied": CheckpointShape(
        architecture="llama",
        config=_shape(9, 3, 8, 72, rope_parameters=DEFAULT_ROPE),
    ),
    # For four ranks: a vocabulary that is no multiple of four, a bias that may be added only once.
    "llama_odd_vocabulary": CheckpointShape(
        architecture="llama",
        config=_shape(8, 4, 8, 48, vocab_size=VOCAB_SIZE + 2, attention_bias=True, tie_word_embeddings=False),
    ),
    "llama3_rope_v5_bias": CheckpointShape(
        architecture="llama",
        config=_shape(4, 4, 24, 64, rope_parameters=LLAMA3_ROPE, attention_bias=True),
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take which random fault runs are done (tests/e2e/faults): pytest asks for options only here."""
    parser.addoption("--fault-seed", type=int, default=1000, help="seed of the first random fault run")
    parser.addoption("--fault-runs", type=int, default=200, help="how many random fault runs")


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function: the name of one of SHAPES -> its model folder, made once a session."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            _write_model(folder, name, SHAPES[name])
            _write_tokenizer(folder)
            folders[name] = folder
        return folders[name]

    return make


def _write_model(folder: Path, name: str, shape: CheckpointShape) -> None:
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    torch.set_num_threads(1)
    tokens: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        model: Any
        if shape.architecture == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**shape.config, **tokens))
        else:
            model = LlamaForCausalLM(LlamaConfig(**shape.config, **tokens))
        for key, parameter in model.named_parameters():
            # Fresh norms are all ones and fresh biases zeros: a mixed-up one would not show.
            if "norm" in key or key.endswith("bias"):
                parameter.data.add_(torch.randn_like(parameter) * 0.2)
            # Normalized queries and keys give flat attention, and flat attention repeated tokens.
            if "q_norm" in key or "k_norm" in key:
                parameter.data.mul_(2.5)
    model.save_pretrained(folder, max_shard_size=shape.max_shard_size)
    if shape.is_transformers_4:
        _spell_config_as_transformers_4(folder / "config.json")


def _spell_config_as_transformers_4(path: Path) -> None:
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


def _write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of VOCAB_SIZE tokens: every text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TOKENIZER_TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": EOS_TOKEN,
        "pad_token": SPECIAL_TOKENS[0],
        "add_bos_token": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
