"""What a command says and returns when it fails: one line, and one table of exit codes.

Knows nothing about the commands.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never

import grpc
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
    Unimplemented,
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


_FLAG_OF_ARGUMENT = {
    "timeout_seconds": "--timeout-seconds",
    "ca_file": "--tls-ca",
    "certificate_file": "--tls-cert",
    "key_file": "--tls-key",
}
_SUBJECT = re.compile(r"\w+(?: and \w+)?(?= (?:is|must|pass)\b)")
"""What a message of the client is about: its first words."""


def exit_code_of(error: StepwireClientError) -> int:
    """Return the exit code of the nearest class that has one."""
    return next(EXIT_CODE_OF_ERROR[base] for base in type(error).__mro__ if base in EXIT_CODE_OF_ERROR)


def describe(error: StepwireClientError, address: str, *, timeout_seconds: float | None = None) -> str:
    """Say in one line what went wrong, and what to do where no server answers.

    Args:
        error: what the client raised.
        address: where the server was looked for.
        timeout_seconds: what the user gave as --timeout-seconds.
    """
    line = _in_flags(" ".join(error.message.split()))
    if isinstance(error, TlsFailed):
        return f"no connection to {address}: {line}"
    if isinstance(error, ConnectionFailed):
        return f"no server answers at {address}; start one: stepwire serve --model DIR"
    if isinstance(error, DeadlineExceeded) and timeout_seconds is not None:
        return f"not done within --timeout-seconds {timeout_seconds:g} ({line})"
    if isinstance(error, Unimplemented):
        return f"{address} does not know this call, as a scheduler of this version does ({line})"
    if error.code is grpc.StatusCode.UNAUTHENTICATED and "authorization:" in line:
        # The server speaks of what a program sends.
        return f"{line.partition(':')[0]}: --token, or the variable STEPWIRE_TOKEN"
    return line


def _in_flags(line: str) -> str:
    """Name flags where the client names the arguments of its own that they became."""
    subject = _SUBJECT.match(line)
    if subject is None:
        return line
    words = [_FLAG_OF_ARGUMENT.get(word, word) for word in subject[0].split()]
    return " ".join(words) + line[subject.end() :]


def fail(message: str, exit_code: int = EXIT_FAILED) -> Never:
    """End the program with one line on stderr."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(exit_code)


@contextmanager
def one_line_errors(address: str, *, timeout_seconds: float | None = None) -> Iterator[None]:
    """End the program with one line and its exit code when the server refuses or fails; see describe()."""
    try:
        yield
    except StepwireClientError as error:
        fail(describe(error, address, timeout_seconds=timeout_seconds), exit_code_of(error))
    except KeyboardInterrupt:
        typer.echo(err=True)  # the terminal shows ^C in the line
        raise typer.Exit(EXIT_INTERRUPTED) from None


class ShownText:
    """Text on stdout that comes in parts; what is said after it begins a line of its own."""

    def __init__(self) -> None:
        self._is_line_open = False

    def show(self, text: str) -> None:
        """Print the next part."""
        typer.echo(text, nl=False)
        if text:
            self._is_line_open = not text.endswith("\n")

    def end_line(self) -> None:
        """Go to a new line unless the text did already, or none was shown."""
        if self._is_line_open:
            typer.echo()
        self._is_line_open = False
