"""The one address where the scheduler service is scraped: the supervisor's process answers for all others.

Each of them counts on a board in memory that this process can read. So a scrape costs none of them
anything, and counters go on where they were when one of them dies and is started again. Knows nothing
about what is counted (metrics.py).
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler_svc.config import ConfigError, SchedulerConfig

if TYPE_CHECKING:
    from telemetry.exposition import Place

_IN_MEMORY = Path("/dev/shm")


@contextmanager
def serve_metrics(config: SchedulerConfig, say: Callable[[str], None]) -> Iterator[Path | None]:
    """Answer scrapes while the ``with`` block runs; yield where boards stand, None without a port.

    Raises:
        ConfigError: if the port cannot be had, prometheus-client is not installed, or memory is full.
    """
    if config.metrics_port < 0:
        yield None
        return
    with ExitStack() as stack:
        # On a disk, counting would wait now and then until a page has been written out.
        parent = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepwire-", dir=parent)))
        port = _listen(stack, config, folder=folder)
        say(f"scheduler metrics on http://{config.host}:{port}/metrics")
        yield folder


def _listen(stack: ExitStack, config: SchedulerConfig, *, folder: Path) -> int:
    """Start to answer; return the port."""
    # Without a port nothing of it is needed, nor does it have to be installed.
    try:
        from telemetry.exposition import metrics_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError.of(
            "metrics_port", config.metrics_port, f"be -1 where {error.name} is not installed"
        ) from error
    places = _places(config, folder)
    try:
        return stack.enter_context(
            metrics_server(places, host=config.host.strip("[]"), port=config.metrics_port)
        )
    except OSError as error:
        address = f"{config.host}:{config.metrics_port}"
        limit = f"be an address that can be listened on ({error.strerror})"
        raise ConfigError.of("metrics_port", address, limit) from error


def _places(config: SchedulerConfig, folder: Path) -> "list[Place]":
    """Make the boards of all processes.

    Raises:
        ConfigError: if the memory that they stand in is full.
    """
    from scheduler_svc import metrics  # noqa: PLC0415
    from telemetry.board import Board  # noqa: PLC0415
    from telemetry.exposition import Place  # noqa: PLC0415

    engine_path = metrics.engine_board_path(folder)
    try:
        places = [Place(board=Board.in_file(metrics.engine_metrics(config.worker), engine_path))]
        for index in range(config.frontends):
            path = metrics.frontend_board_path(folder, index)
            board = Board.in_file(metrics.frontend_metrics(), path)
            places.append(Place(board=board, labels={"frontend": str(index)}))
    except OSError as error:
        limit = f"be -1 where {folder.parent} has no room ({error.strerror})"
        raise ConfigError.of("metrics_port", config.metrics_port, limit) from error
    return places
