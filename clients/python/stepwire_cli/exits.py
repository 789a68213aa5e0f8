"""What a command says and returns when it fails: one line, and one table of exit codes.

Knows nothing about the commands.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never

import typer
from stepwire_client import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    ResourceExhausted,
    StepwireClientError,
    TlsFailed,
    Unavailable,
)

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""As for an unknown flag."""
EXIT_INTERRUPTED = 130
"""As shells tell a program that Ctrl-C ended."""

EXIT_CODE_OF_ERROR: dict[type[StepwireClientError], int] = {
    InvalidRequest: EXIT_REFUSED,
    Unavailable: 3,
    ResourceExhausted: 4,
    DeadlineExceeded: 5,
    Cancelled: EXIT_INTERRUPTED,
    StepwireClientError: EXIT_FAILED,
}
"""Exit codes; a class without a row has its base's."""


def exit_code_of(error: StepwireClientError) -> int:
    """Return the exit code of the nearest class that has one."""
    return next(EXIT_CODE_OF_ERROR[base] for base in type(error).__mro__ if base in EXIT_CODE_OF_ERROR)


def describe(error: StepwireClientError, address: str) -> str:
    """Say in one line what went wrong, and what to do where no server answers."""
    if isinstance(error, TlsFailed):
        return f"no connection to {address}: {' '.join(error.message.split())}"
    if isinstance(error, ConnectionFailed):
        return f"no server answers at {address}; start one: stepwire serve --model DIR"
    return " ".join(error.message.split())


def fail(message: str, exit_code: int = EXIT_FAILED) -> Never:
    """End the program with one line on stderr."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(exit_code)


@contextmanager
def one_line_errors(address: str) -> Iterator[None]:
    """End the program with one line and its exit code when the server at ``address`` refuses or fails."""
    try:
        yield
    except StepwireClientError as error:
        fail(describe(error, address), exit_code_of(error))
    except KeyboardInterrupt:
        typer.echo(err=True)  # the terminal shows ^C in the line
        raise typer.Exit(EXIT_INTERRUPTED) from None
