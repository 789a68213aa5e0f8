"""Makes a typer command out of a configuration dataclass: one flag a field.

A field's docstring is its flag's help, its default the flag's. Knows nothing about what the options
mean.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from service.field_docstrings import field_docstrings
from service.unknown_options import describe_unknown
from worker_svc.errors import ConfigError

Config = TypeVar("Config")


def config_command(config_class: type[Config], run: Callable[[Config], None]) -> Callable[..., None]:
    """Make the function that typer turns into flags; it makes the configuration and runs ``run``."""

    def command(**options: Any) -> None:
        run(config_class(**options))

    helps = field_docstrings(config_class)
    parameters = [_parameter(field, helps[field.name]) for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = config_class.__doc__
    return command


def check_environment(config_class: type[Any], prefix: str, *, names: Iterable[str]) -> None:
    """Refuse variables that carry the prefix and name no option.

    Raises:
        ConfigError: naming the variable.
    """
    known = {prefix + field.name.upper() for field in dataclasses.fields(config_class)}
    unknown = sorted(name for name in names if name.startswith(prefix) and name not in known)
    if unknown:
        raise ConfigError(describe_unknown(unknown[0], known, prefix=prefix))


def _parameter(field: dataclasses.Field[Any], text: str) -> inspect.Parameter:
    is_required = field.default is dataclasses.MISSING
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else field.default,
        annotation=Annotated[field.type, typer.Option(help=text)],
    )
