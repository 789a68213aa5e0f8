"""The flags that say where a server is, how it is known and who asks; every command that asks has them.

Knows nothing about what is asked.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from stepwire_client import AsyncStepwireClient, InvalidRequest, StepwireClient, Tls
from stepwire_client.channel import DEFAULT_ADDRESS

_SERVER = "Server"
_ADDRESS = re.compile(r"(?:\[[^\s\[\]]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})")
"""An IPv6 address stands in brackets."""
_MAX_PORT = 65535
TOKEN_VARIABLE = "STEPWIRE_TOKEN"


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Which server is asked."""

    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the server listens.", rich_help_panel=_SERVER)
    ] = DEFAULT_ADDRESS
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Use TLS and trust public authorities; --tls-ca names others.",
            rich_help_panel=_SERVER,
        ),
    ] = False
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use TLS; the server's certificate must be from one of these (PEM).",
            rich_help_panel=_SERVER,
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use TLS and show this certificate (PEM); needs --tls-key.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Private key of --tls-cert (PEM).", rich_help_panel=_SERVER),
    ] = None
    token: Annotated[
        str,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="Bearer token. The variable hides it from other users' process lists.",
            rich_help_panel=_SERVER,
        ),
    ] = field(default="", repr=False)

    def client(self) -> StepwireClient:
        """Make a client of that server.

        Raises:
            StepwireClientError: if the address, a file or the token cannot be used.
        """
        return StepwireClient(self._checked_address(), tls=self.make_tls(), token=self.token)

    def aio_client(self) -> AsyncStepwireClient:
        """Make a client of that server for asyncio.

        Raises:
            StepwireClientError: if the address, a file or the token cannot be used.
        """
        return AsyncStepwireClient(self._checked_address(), tls=self.make_tls(), token=self.token)

    def _checked_address(self) -> str:
        # gRPC takes any text for an address, and says later that nobody answers there.
        found = _ADDRESS.fullmatch(self.address)
        if found is None or not 1 <= int(found["port"]) <= _MAX_PORT:
            raise InvalidRequest(f"--address is {self.address!r}, but must be HOST:PORT")
        return self.address

    def make_tls(self) -> Tls | None:
        """Say how the server is known; None: no TLS."""
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key):
            return None
        return Tls(ca_file=self.tls_ca, certificate_file=self.tls_cert, key_file=self.tls_key)
