"""Finds a model folder, on this machine or on a hub, and tells what identifies it.

Knows nothing about what the files mean, and imports no torch: the scheduler service uses it too.
"""

import hashlib
from pathlib import Path

from model.errors import ModelFetchError, ModelFolderError

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
HUB_FILE_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def find_model_folder(name: str) -> Path:
    """Return the folder of a model given by path or by hub id, fetching it where it is a hub id.

    Args:
        name: a folder that holds config.json, or an id such as "Qwen/Qwen3-0.6B".

    Raises:
        ModelFolderError: neither names a readable model folder; ModelFetchError if the hub did not give it.
    """
    return find_local_folder(name) or _fetch_from_hub(name)


def find_local_folder(name: str) -> Path | None:
    """Return the folder of a model given by path; None where the name may be a hub's. Fetches nothing.

    Raises:
        ModelFolderError: it names no readable model folder, and can be no hub id.
    """
    try:
        folder = Path(name).expanduser()
        is_there, has_config = folder.exists(), (folder / CONFIG_FILE).is_file()
    # A folder that we may not look into, a name that is too long; "~name" of nobody here.
    except (OSError, RuntimeError) as error:
        raise ModelFolderError(f"cannot read model folder {name!r}: {error}") from error
    if is_there:
        if not has_config:
            raise ModelFolderError(f"model {name!r} is no model folder: it holds no {CONFIG_FILE}")
        return folder
    if not _can_be_hub_id(name):
        raise ModelFolderError(f"model folder {name!r} does not exist")
    return None


def config_hash(folder: Path) -> str:
    """Return the SHA-256 of config.json's bytes, in hex.

    Raises:
        ModelFolderError: the file cannot be read.
    """
    try:
        return hashlib.sha256((folder / CONFIG_FILE).read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFolderError(f"cannot read {folder / CONFIG_FILE}: {error}") from error


def tokenizer_hash(folder: Path) -> str:
    """Return the SHA-256 of tokenizer.json's bytes, in hex; empty where the folder has none.

    Raises:
        ModelFolderError: the file is there but cannot be read.
    """
    path = folder / TOKENIZER_FILE
    if not path.exists():
        return ""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error}") from error


def _can_be_hub_id(name: str) -> bool:
    """Whether ``name`` has the form of a hub id, "owner/model", and not that of a path."""
    owner, slash, model = name.partition("/")
    return bool(slash and owner and model) and "/" not in model and not owner.startswith((".", "~"))


def _fetch_from_hub(hub_id: str) -> Path:
    # Imported here: it takes a while, and most starts name a folder.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=HUB_FILE_PATTERNS))
    # The hub's client lets through errors of several libraries, with no root of their own.
    except Exception as error:
        reason = " ".join(str(error).split())  # some have several lines
        raise ModelFetchError(
            f"model {hub_id!r} is no folder here, and fetching it from the hub failed: {reason}"
        ) from error
    if not (folder / CONFIG_FILE).is_file():
        raise ModelFolderError(f"hub model {hub_id!r} holds no {CONFIG_FILE}")
    return folder
