"""Loads a rank's pieces of a checkpoint's tensors: each exactly once, or an error that names the tensor.

Reads no more of a tensor than its piece. Knows nothing about the mathematics; weight_names.py says which
piece goes where.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model.checkpoint import CheckpointFile, find_checkpoint_files, open_checkpoint_file
from model.decoder import CausalLM
from model.errors import ModelFolderError
from model.weight_names import WeightTarget, may_be_ignored, weight_targets
from model.weight_pieces import Piece


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
    targets = weight_targets(model.share)
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
                tensor = _read_piece(file, target.piece, path=checkpoint_file.path)
                rows = parameters[target.parameter].data[target.first_row :][: target.piece.num_rows]
                rows[: len(tensor)].copy_(tensor)
                rows[len(tensor) :].zero_()
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


def _read_piece(file: Any, piece: Piece, *, path: Path) -> torch.Tensor:
    """Return a tensor's piece on the CPU; the tensor is checked to have its shape and a floating dtype."""
    tensor = file.get_slice(piece.name)
    found = tuple(tensor.get_shape())
    if found != piece.shape:
        raise ModelFolderError(
            f"{path}: {piece.name} has shape {found}, but the config asks for {piece.shape}"
        )
    if piece.is_whole:
        # A view of the file: where the weights go is the only copy.
        values: torch.Tensor = file.get_tensor(piece.name)
    elif piece.columns is None:
        values = tensor[piece.rows.start : piece.rows.stop]
    else:
        values = tensor[:, piece.columns.start : piece.columns.stop]
    if not values.is_floating_point():
        raise ModelFolderError(f"{path}: {piece.name} is of {values.dtype}, but must be of a floating dtype")
    return values


def _assert_covers(targets: dict[str, WeightTarget], parameters: dict[str, nn.Parameter]) -> None:
    """Check that the targets fill every row of every parameter: a gap is our own bug."""
    num_rows = dict.fromkeys(parameters, 0)
    for target in targets.values():
        assert num_rows[target.parameter] == target.first_row, target
        piece = target.piece
        num_columns = piece.shape[1:] if piece.columns is None else (len(piece.columns),)
        assert parameters[target.parameter].shape[1:] == num_columns, target
        num_rows[target.parameter] += piece.num_rows
    for name, parameter in parameters.items():
        assert num_rows[name] == parameter.shape[0], name
