"""Starts the worker service: flags and environment in, a frozen configuration out, then serve.

Nobody else reads flags or environment. Run it alone or under torchrun, which sets RANK, WORLD_SIZE
and more. Knows nothing about models or steps.
"""

import contextlib
import logging
import os
import signal
import sys

import typer

from telemetry.log_lines import set_up_logging
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError, DeviceLostError, StartupError
from worker_svc.first_checks import check_address, check_model
from worker_svc.flags import check_environment, config_command
from worker_svc.tp.group import make_tp_group

HELP = "Serve one worker group: hold the model and run the steps of an engine. Alone, or under torchrun."
PREFIX = "STEPWIRE_WORKER_"
EXIT_FAILED = 1
EXIT_REFUSED = 2
"""As for an unknown flag: an option's value, or a file that one names, does not fit."""
EXIT_DEVICE_LOST = 3
"""Exit code that asks for a new process."""
GRPC_ENVIRONMENT = {
    # Forks are none of ours; the support costs threads and locks.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # The older event engine: 0.12-0.15 ms a round trip of 100 B under uvloop, against 0.25 ms.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
GPU_ENVIRONMENT = {
    # No NVLink multicast: our sums need none, and a process that ends badly in it can take GPUs along.
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
}


def main() -> None:
    """Run the command line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    settings = {"auto_envvar_prefix": PREFIX.removesuffix("_"), "max_content_width": 400}
    app.command(context_settings=settings, help=HELP)(config_command(WorkerConfig, _run))
    try:
        check_environment(WorkerConfig, PREFIX, names=os.environ)
        app(prog_name="python -m worker_svc")
    except StartupError as error:
        _leave_process(EXIT_REFUSED if isinstance(error, ConfigError) else EXIT_FAILED, f"error: {error}")
    except DeviceLostError as error:
        _end_at_once(error)


def _end_at_once(error: DeviceLostError) -> None:
    """End the process, from whatever thread."""
    _leave_process(EXIT_DEVICE_LOST, f"error: {error}; ending with exit code {EXIT_DEVICE_LOST}")


def _leave_process(exit_code: int, last_words: str = "") -> None:
    """End without the interpreter's own end.

    That would wait for the device, or for other ranks, and crash where a step was given up but still runs.
    """
    with contextlib.suppress(OSError):  # whoever read its output may have gone first
        if last_words:
            typer.echo(last_words, err=True)
        sys.stdout.flush()
    os._exit(exit_code)


def _run(config: WorkerConfig) -> None:
    """Serve; what needs the environment is imported after it is set."""
    group = make_tp_group(config.device, os.environ, parent_pid=os.getppid())
    check_model(config.model)
    if group.is_leader:
        check_address(config.host, config.port)
    for name, value in (GRPC_ENVIRONMENT | GPU_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    set_up_logging(level, config.log_format, process_name=group.process_name)
    # Until the server handles it, Ctrl-C just ends the process, also in the middle of a load.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from worker_svc.start import start_worker  # noqa: PLC0415

    start_worker(config, group, on_lost=_end_at_once)
    _leave_process(0)


if __name__ == "__main__":
    main()
