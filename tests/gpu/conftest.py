"""GPU tests skip where there is no GPU, and give its memory back after each module."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def _needs_a_gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    yield
    torch.cuda.empty_cache()
