"""Writes a random checkpoint of Qwen3's published shapes, for speed: no registry has the real weights.

    python -m benchmarks.make_qwen3 FOLDER [--shape 0.6B|8B]

Made on a GPU where there is one. Has no tokenizer: benchmarks speak token ids. Knows nothing about engines.
"""

import argparse
from pathlib import Path
from typing import Any

VOCAB_SIZE, NUM_KV_HEADS, HEAD_DIM = 151936, 8, 128
"""Of all shapes."""

SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}


def make_qwen3(folder: Path, shape: str = "0.6B") -> None:
    """Write the checkpoint, in bfloat16."""
    import torch  # noqa: PLC0415
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rms_norm_eps=1e-6,
        max_position_embeddings=40960,
        bos_token_id=151643,
        eos_token_id=151645,
        **SHAPES[shape],
    )
    config.dtype = torch.bfloat16
    torch.manual_seed(0)
    old_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model: Any = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(old_dtype)
    model.save_pretrained(folder)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.6B")
    arguments = parser.parse_args()
    make_qwen3(arguments.folder, arguments.shape)
    print(f"{arguments.folder}: random Qwen3 {arguments.shape}")


if __name__ == "__main__":
    main()
