"""Tells lines on behalf of a server, which goes on where nobody reads them.

Knows nothing about what they say.
"""

import contextlib
import os
import sys
from pathlib import Path

import typer


def tell(line: str, *, is_error: bool = False) -> None:
    """Print a line; one that cannot be printed is dropped, such as where the disk is full."""
    with contextlib.suppress(OSError):
        try:
            typer.echo(line, err=is_error)
        except BrokenPipeError:
            # What is buffered goes there, too: else the end of the program would try it again, and fail.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), (sys.stderr if is_error else sys.stdout).fileno())
