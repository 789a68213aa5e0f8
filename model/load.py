"""Makes a model ready to run from its folder. Knows nothing about what runs it."""

from collections.abc import Callable
from pathlib import Path

import torch

from model.config import ModelConfig
from model.decoder import CausalLM
from model.llama import LlamaForCausalLM
from model.qwen3 import Qwen3ForCausalLM
from model.ranks import Ranks
from model.weights import load_weights

MODEL_CLASSES: dict[str, type[CausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
}


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    ranks: Ranks | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CausalLM:
    """Build the model on a device and load each of its parameters once.

    Args:
        folder: holds the safetensors files.
        config: what read_model_config gave for the folder.
        device: where the weights go.
        dtype: what the weights are cast to.
        ranks: which share the model. None: it is not shared.
        on_progress: called with the number of checkpoint tensors loaded and their total.

    Raises:
        ModelFolderError: a file or parameter is missing, broken, unexpected or of another shape.
        ShareError: so many ranks cannot share the model.
    """
    with torch.device(device):
        model = MODEL_CLASSES[config.architecture](config, ranks=ranks, dtype=dtype)
    load_weights(model, folder, on_progress=on_progress)
    model.pack_weights()
    return model.eval()
