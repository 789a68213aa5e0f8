"""Joins the configured model, runner and server, and tells people how the start goes.

Knows nothing about flags or the environment.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from service.pem_files import PemFiles
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError, DeviceLostError
from worker_svc.exposure import exposure_lines
from worker_svc.rpc.server import ServerOptions, serve
from worker_svc.runner.load import OnProgress, load_worker
from worker_svc.runner.worker_info import LoadedWorker
from worker_svc.scraped import serve_metrics
from worker_svc.tp.group import TpGroup

OnLost = Callable[[DeviceLostError], object]


def start_worker(config: WorkerConfig, group: TpGroup, *, on_lost: OnLost) -> None:
    """Serve until a signal; as a rank that follows, until the leading one ends.

    Args:
        config: The worker's options.
        group: This rank's place.
        on_lost: Called from any thread when another rank is lost: must end this process.

    Raises:
        StartupError: if the worker cannot start.
        DeviceLostError: if only a new process can compute again.
    """
    if group.size == 1:
        _serve(config, partial(_load, config, group))
        return
    # Only here: one rank needs none of it.
    from worker_svc.tp.ranks_start import follow, join, lead  # noqa: PLC0415

    membership = join(config, group, on_lost=on_lost)
    if group.is_leader:
        _serve(config, lambda: lead(_load(config, group), membership))
    else:
        follow(load_worker(config, group), membership)
    membership.leave()


def _serve(config: WorkerConfig, load: Callable[[], LoadedWorker]) -> None:
    with (
        serve_metrics(config, typer.echo) as meter,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for line in exposure_lines(config):
            typer.echo(line)
        options = ServerOptions(
            host=config.host,
            port=config.port,
            stuck_step_seconds=config.stuck_step_seconds,
            meter=meter,
            credentials=PemFiles(config=config, refuse=ConfigError.of).server_credentials(),
            has_reflection=config.reflection,
        )
        runner.run(serve(options, load, announce=typer.echo))


def _load(config: WorkerConfig, group: TpGroup) -> LoadedWorker:
    return load_worker(
        config,
        group,
        tell=typer.echo,
        weights_progress=partial(_progress, "weights", "loaded"),
        graphs_progress=partial(_progress, "graphs", "captured"),
    )


@contextmanager
def _progress(what: str, done: str) -> Iterator[OnProgress | None]:
    """Show a bar on a terminal; one line when done elsewhere."""
    start_seconds = time.monotonic()
    if not sys.stderr.isatty():
        yield None
    else:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda count, total: progress.update(task, completed=count, total=total)
    typer.echo(f"{what:10} {done} in {time.monotonic() - start_seconds:.1f} s")
