"""Every kernel test runs on one thread: on shared cores more of them are slower, not faster."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
