"""Opens a folder's safetensors files, one or many, and checks that index and files agree.

Knows nothing about what the tensors are for, nor our own parameter names.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from model.errors import ModelFolderError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """One safetensors file and the names of all its tensors."""

    path: Path
    names: tuple[str, ...]


def find_checkpoint_files(folder: Path) -> tuple[CheckpointFile, ...]:
    """Return the folder's safetensors files: those of its index, or the single one.

    Raises:
        ModelFolderError: a file is missing or broken, or holds other tensors than the index says.
    """
    if not (folder / INDEX_FILE).exists():
        path = folder / SINGLE_FILE
        if not path.is_file():
            raise ModelFolderError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}")
        return (CheckpointFile(path=path, names=_tensor_names(path)),)
    names_by_file: dict[str, set[str]] = {}
    for name, file_name in _read_index(folder / INDEX_FILE).items():
        names_by_file.setdefault(file_name, set()).add(name)
    return tuple(
        _indexed_file(folder, file_name, indexed_names)
        for file_name, indexed_names in sorted(names_by_file.items())
    )


@contextmanager
def open_checkpoint_file(path: Path) -> Iterator[Any]:
    """Open one file for reading tensors by name (safetensors' own handle).

    Raises:
        ModelFolderError: the file may not be read, or is broken or truncated, found at opening or later.
    """
    try:
        path.open("rb").close()  # safetensors tells of a file that we may not read that there is none
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error.strerror}") from error
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(f"cannot read {path}, it is truncated or broken: {error}") from error


def _indexed_file(folder: Path, file_name: str, indexed_names: set[str]) -> CheckpointFile:
    path = folder / file_name
    example = min(indexed_names)
    if not path.is_file():
        raise ModelFolderError(f"{path} is missing; {INDEX_FILE} says that it holds {example}")
    names = _tensor_names(path)
    if missing := indexed_names - set(names):
        raise ModelFolderError(f"{path} does not hold {min(missing)}, but {INDEX_FILE} says so")
    if extra := set(names) - indexed_names:
        raise ModelFolderError(f"{path} holds {min(extra)}, but {INDEX_FILE} does not say so")
    return CheckpointFile(path=path, names=names)


def _tensor_names(path: Path) -> tuple[str, ...]:
    with open_checkpoint_file(path) as file:
        return tuple(sorted(file.keys()))


def _read_index(path: Path) -> dict[str, str]:
    """Return the index's map from tensor name to file name."""
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{path} is no index of safetensors files: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFolderError(f"{path}: weight_map must be an object with entries")
    for name, file_name in weight_map.items():
        # A plain file name only: an index must not reach outside its folder.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelFolderError(f"{path}: {name} is said to be in {file_name!r}, which is no file name")
    return weight_map
