"""``stepwire token``: a new bearer token for a tenant, and the lines of the tenants file that let it in.

Knows nothing about servers: neither the token nor its hash is sent or kept anywhere.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Annotated

import typer

from stepwire_cli.exits import EXIT_REFUSED, fail

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUM_TOKEN_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class TokenFlags:
    """Draw a bearer token: it is shown on stderr, its table for the tenants file on stdout."""

    tenant: Annotated[str, typer.Argument(help="Name of the tenant.", show_default=False)]


def run_token(flags: TokenFlags) -> None:
    """Run the command."""
    if not _NAME.fullmatch(flags.tenant):
        fail(
            f"the tenant is {flags.tenant!r}, but must have 1 to 64 of the characters A-Z a-z 0-9 . _ -",
            EXIT_REFUSED,
        )
    token = secrets.token_urlsafe(_NUM_TOKEN_BYTES)
    typer.echo(f"token of {flags.tenant}, shown this once: {token}", err=True)
    typer.echo(f'["{flags.tenant}"]\ntoken_sha256 = ["{hashlib.sha256(token.encode()).hexdigest()}"]')
