"""Both services as processes on 127.0.0.1, with a tiny random model.

Knows nothing about any test. The services are started once for all tests that only use them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stepwire_client import StepwireClient

from tools.services import Services, running_services

WORKER_FLAGS = (
    "--torch-threads",
    "1",
    "--num-blocks",
    "64",
    "--max-num-seqs",
    "20",
    "--max-model-len",
    "256",
    "--metrics-port",
    "0",
)
SCHEDULER_FLAGS = ("--check-invariants", "--metrics-port", "0")


@pytest.fixture(scope="session")
def model_folder(checkpoint_folder: Callable[[str], Path]) -> Path:
    """Return the folder of the model that the services serve."""
    return checkpoint_folder("qwen3_gqa3")


@pytest.fixture(scope="session")
def services(model_folder: Path) -> Iterator[Services]:
    """Run both services."""
    with running_services(
        model_folder, worker_flags=WORKER_FLAGS, scheduler_flags=SCHEDULER_FLAGS
    ) as services:
        yield services


@pytest.fixture
def client(services: Services) -> Iterator[StepwireClient]:
    """Yield a client; afterwards nothing may be held, whatever the test did."""
    with StepwireClient(services.address) as client:
        yield client
        wait_until_idle(client)


def wait_until_idle(client: StepwireClient, limit_seconds: float = 10.0) -> None:
    """Wait until no request is queued or running; then no block may be held."""
    import time  # noqa: PLC0415

    deadline = time.monotonic() + limit_seconds
    while True:
        state = client.server_state()
        if not (state.num_running or state.num_waiting or state.num_preempted):
            break
        assert time.monotonic() < deadline, f"still busy: {state}"
        time.sleep(0.02)
    assert state.kv_cache_usage_ratio == 0, f"blocks are held while idle: {state}"
