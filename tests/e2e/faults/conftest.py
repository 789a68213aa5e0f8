"""Both services as processes, with a link between them that tests slow down, stall and break.

Knows nothing about any test. The services are started once for all tests of a process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from stepwire_client import StepwireClient

from tests.e2e.conftest import SCHEDULER_FLAGS, WORKER_FLAGS, wait_until_idle
from tests.e2e.faults.steered_link import SteeredLink
from tools.link_proxy import LinkProxy
from tools.services import Service, running

RECOVERY_LIMIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedServices:
    """A worker, a scheduler, and the link that the steps take."""

    worker: Service
    scheduler: Service
    link: SteeredLink
    address: str


@pytest.fixture(scope="session")
def linked_services(model_folder: Path) -> Iterator[LinkedServices]:
    """Run both services."""
    common = ("--model", str(model_folder), "--port", "0")
    with (
        running("worker_svc", *common, *WORKER_FLAGS) as worker,
        SteeredLink(worker.address()) as link,
        running("scheduler_svc", *common, *SCHEDULER_FLAGS, "--worker", link.address) as scheduler,
    ):
        scheduler.wait_for(f"worker {link.address} serves on ")
        yield LinkedServices(worker=worker, scheduler=scheduler, link=link, address=scheduler.address())


@pytest.fixture
def link(linked_services: LinkedServices) -> Iterator[SteeredLink]:
    """Yield the link, whole; it is whole again afterwards."""
    link = linked_services.link
    yield link
    for heal in (LinkProxy.mend, LinkProxy.resume):
        link.steer(heal)
    link.steer(LinkProxy.delay, 0.0)


@pytest.fixture
def linked_client(linked_services: LinkedServices, link: SteeredLink) -> Iterator[StepwireClient]:
    """Yield a client; afterwards nothing may be held, whatever became of the link."""
    with StepwireClient(linked_services.address) as client:
        yield client
        link.steer(LinkProxy.mend)
        link.steer(LinkProxy.resume)
        wait_until_idle(client, RECOVERY_LIMIT_SECONDS)


@pytest.fixture(scope="session")
def fault_seeds(request: pytest.FixtureRequest) -> range:
    """Return the seeds of the random fault runs: --fault-seed is the first of --fault-runs."""
    first = request.config.getoption("--fault-seed")
    return range(first, first + request.config.getoption("--fault-runs"))
