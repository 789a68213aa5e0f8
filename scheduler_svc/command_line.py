"""The scheduler service's command line: flags and environment to a config, and the config to its run.

The only module of the service that reads flags. Each field of SchedulerConfig is a flag, with the
field's docstring as its help, and an environment option STEPWIRE_SCHEDULER_<FLAG>. Knows nothing
about processes or requests.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import typer

from model.errors import ModelFetchError, ModelFolderError
from model.folder import find_local_folder, find_model_folder
from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.supervisor import supervise
from scheduler_svc.traced import with_collector
from service.field_docstrings import field_docstrings
from service.unknown_options import describe_unknown

ENVIRONMENT_PREFIX = "STEPWIRE_SCHEDULER"


def run_command_line(environment: Mapping[str, str]) -> None:
    """Run what the process's arguments and this environment, its own, say; end the process."""

    def run(**flags: Any) -> None:
        """Run the scheduler service: front ends that clients call, and the engine that decides."""
        raise typer.Exit(_run(flags, environment))

    parameters = list(_flags())
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX, "max_content_width": 400})(run)
    app(prog_name="python -m scheduler_svc")


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse options of ours that are none.

    Raises:
        ConfigError: naming the first unknown one.
    """
    known = {f"{ENVIRONMENT_PREFIX}_{field.name.upper()}" for field in fields(SchedulerConfig)}
    for name in sorted(environment):
        if name.startswith(f"{ENVIRONMENT_PREFIX}_") and name not in known:
            raise ConfigError(describe_unknown(name, known, prefix=f"{ENVIRONMENT_PREFIX}_"))


def _run(flags: dict[str, Any], environment: Mapping[str, str]) -> int:
    """Run the service; return the process's exit code."""
    try:
        check_environment(environment)
        config = SchedulerConfig(**flags | {"worker": tuple(flags["worker"])})
        if config.check_only:
            from scheduler_svc.files_check import check_files  # noqa: PLC0415  # it imports grpc

            check_files(config)
            find_local_folder(config.model)
            return 0
        return supervise(with_collector(_with_model_found(config), environment), typer.echo)
    except (ConfigError, ModelFolderError) as error:
        typer.echo(f"scheduler error: {error}", err=True)
        return 1 if isinstance(error, ModelFetchError) else 2


def _with_model_found(config: SchedulerConfig) -> SchedulerConfig:
    """Turn the model's name into its folder, once for all processes, and give it a name to be served by."""
    folder = find_model_folder(config.model).resolve()
    name = folder.name if Path(config.model).expanduser().exists() else config.model
    return replace(config, model=str(folder), served_model_name=config.served_model_name or name)


def _flags() -> Iterator[inspect.Parameter]:
    """Make a flag of each field of the config."""
    help_of_field = field_docstrings(SchedulerConfig)
    for field in fields(SchedulerConfig):
        is_repeatable = isinstance(field.default, tuple)
        option: Any = typer.Option(
            ... if field.default is MISSING else list(field.default) if is_repeatable else field.default,
            _spelling(field.name, is_on=field.default is True),
            help=help_of_field[field.name],
        )
        annotation = list[str] if is_repeatable else field.type
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
        )


def _spelling(name: str, *, is_on: bool) -> str:
    """Spell a field as a flag; one that is on by default can be turned off."""
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if is_on else f"--{flag}"
