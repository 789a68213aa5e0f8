"""Loads a checkpoint's tensors into our parameters: each exactly once, or an error that names it.

Knows nothing about the mathematics; weight_names.py says which tensor goes where.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from model.checkpoint import CheckpointFile, find_checkpoint_files, open_checkpoint_file
from model.decoder import CausalLM
from model.errors import ModelFolderError
from model.weight_names import WeightTarget, may_be_ignored, weight_targets


def load_weights(
    model: CausalLM, folder: Path, *, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Fill every parameter of the model from the folder's safetensors files.

    Args:
        model: its parameters keep their dtype; tensors of another are cast.
        folder: holds the files.
        on_progress: called with the number of tensors loaded and their total.

    Raises:
        ModelFolderError: a file or tensor is missing, broken, unexpected or of another shape.
    """
    targets = weight_targets(model.config)
    parameters = dict(model.named_parameters())
    _assert_covers(targets, parameters)
    files = find_checkpoint_files(folder)
    _check_names(files, targets, model=model)
    num_loaded = 0
    for checkpoint_file in files:
        with open_checkpoint_file(checkpoint_file.path) as file:
            for name in checkpoint_file.names:
                if (target := targets.get(name)) is None:
                    continue
                tensor = _read_tensor(file, name, path=checkpoint_file.path, shape=target.shape)
                rows = slice(target.first_row, target.first_row + target.shape[0])
                parameters[target.parameter].data[rows].copy_(tensor)
                num_loaded += 1
                if on_progress is not None:
                    on_progress(num_loaded, len(targets))
    assert num_loaded == len(targets)


def _check_names(
    files: tuple[CheckpointFile, ...], targets: dict[str, WeightTarget], *, model: CausalLM
) -> None:
    """Raise unless the files hold each needed tensor, and nothing that would be left out unseen."""
    path_of = {name: file.path for file in files for name in file.names}
    if missing := targets.keys() - path_of.keys():
        searched = ", ".join(str(file.path) for file in files)
        raise ModelFolderError(
            f"parameter {min(missing)} is missing ({len(missing)} missing in all) in: {searched}"
        )
    for name in sorted(path_of.keys() - targets.keys()):
        if not may_be_ignored(name, model.config):
            raise ModelFolderError(
                f"{path_of[name]} holds {name}, which the config of this {model.config.architecture} "
                "has no place for"
            )


def _read_tensor(file: Any, name: str, *, path: Path, shape: tuple[int, ...]) -> Any:
    """Return one tensor on the CPU, checked to have this shape and a floating dtype."""
    found = tuple(file.get_slice(name).get_shape())
    if found != shape:
        raise ModelFolderError(f"{path}: {name} has shape {found}, but the config asks for {shape}")
    tensor = file.get_tensor(name)
    if not tensor.is_floating_point():
        raise ModelFolderError(f"{path}: {name} is of {tensor.dtype}, but must be of a floating dtype")
    return tensor


def _assert_covers(targets: dict[str, WeightTarget], parameters: dict[str, nn.Parameter]) -> None:
    """Check that the targets fill every row of every parameter: a gap is our own bug."""
    num_rows = dict.fromkeys(parameters, 0)
    for target in targets.values():
        assert num_rows[target.parameter] == target.first_row, target
        assert parameters[target.parameter].shape[1:] == target.shape[1:], target
        num_rows[target.parameter] += target.shape[0]
    for name, parameter in parameters.items():
        assert num_rows[name] == parameter.shape[0], name
