"""Makes a typer command out of a frozen dataclass: one flag a field, annotated with its option.

Knows nothing about what the flags mean.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

Flags = TypeVar("Flags")


def command_of(flags_class: type[Flags], run: Callable[[Flags], None]) -> Callable[..., None]:
    """Return a function with a parameter for each field, as typer reads them, that calls ``run``.

    Args:
        flags_class: its docstring is the command's help.
        run: takes the flags as one value.
    """

    def command(**values: Any) -> None:
        run(flags_class(**values))

    hints = get_type_hints(flags_class, include_extras=True)
    parameters = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default_of(item),
            annotation=hints[item.name],
        )
        for item in dataclasses.fields(flags_class)  # type: ignore[arg-type]  # always a dataclass
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__doc__ = flags_class.__doc__
    return command


def _default_of(item: "dataclasses.Field[Any]") -> object:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return inspect.Parameter.empty if item.default is dataclasses.MISSING else item.default
