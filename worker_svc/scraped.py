"""Where the worker is scraped: a thread of its own process answers.

Without a port nothing of it is imported, so that a machine needs no prometheus-client. Knows nothing
about what is counted (meter.py).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from telemetry.board import Board
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError
from worker_svc.meter import WORKER_METRICS, WorkerMeter


@contextmanager
def serve_metrics(config: WorkerConfig, tell: Callable[[str], None]) -> Iterator[WorkerMeter]:
    """Yield what counts; with a port, answer scrapes of it while the ``with`` block runs.

    Raises:
        ConfigError: if the port cannot be had, or prometheus-client is not installed.
    """
    board = Board(WORKER_METRICS)
    with ExitStack() as stack:
        if config.metrics_port >= 0:
            port = _listen(stack, config, board=board)
            tell(f"worker metrics on http://{config.host}:{port}/metrics")
        yield WorkerMeter(board)


def _listen(stack: ExitStack, config: WorkerConfig, *, board: Board) -> int:
    """Start to answer; return the port."""
    option = f"--metrics-port is {config.metrics_port}, but must"
    try:
        from telemetry.exposition import Place, metrics_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{option} be -1 where {error.name} is not installed") from error
    try:
        place = Place(board=board)
        return stack.enter_context(
            metrics_server([place], host=config.host.strip("[]"), port=config.metrics_port)
        )
    except OSError as error:
        raise ConfigError(f"{option} be free on {config.host} ({error.strerror})") from error
