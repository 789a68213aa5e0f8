"""How a client knows its server and makes itself known: TLS files, and a token on every call.

Knows nothing about requests. What a file or a token holds is never part of a message.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import grpc

from stepwire_client.channel import ChannelOptions
from stepwire_client.errors import InvalidRequest

_TOKEN = re.compile(r"[!-~]*")
"""What metadata can carry, without white space."""

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS to the server; without files: the server's certificate must be from a public authority."""

    ca_file: str | Path | None = None
    """PEM file of the authorities that the server's certificate must be from."""
    certificate_file: str | Path | None = None
    """PEM file of the certificate that the server is shown, where it asks for one."""
    key_file: str | Path | None = None
    """PEM file of the private key of ``certificate_file``."""

    def __post_init__(self) -> None:
        """Refuse half a pair."""
        if (self.certificate_file is None) is not (self.key_file is None):
            raise InvalidRequest("certificate_file and key_file must be given together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            InvalidRequest: naming the file that cannot be read, or that holds no authorities.
        """
        authorities = _read("ca_file", self.ca_file)
        if authorities is not None and _CERTIFICATE not in authorities:
            # gRPC would tell of it only when it connects, and not which file it was.
            raise InvalidRequest(f"ca_file is {str(self.ca_file)!r}, but must hold PEM certificates")
        return grpc.ssl_channel_credentials(
            root_certificates=authorities,
            private_key=_read("key_file", self.key_file),
            certificate_chain=_read("certificate_file", self.certificate_file),
        )


def open_channel(address: str, tls: Tls | None, *, options: ChannelOptions) -> grpc.Channel:
    """Open a channel for threads."""
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.credentials(), options=options)


def open_aio_channel(address: str, tls: Tls | None, *, options: ChannelOptions) -> grpc.aio.Channel:
    """Open a channel for asyncio."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials(), options=options)


def token_metadata(token: str | None) -> Metadata:
    """Return what each call carries; nothing without a token.

    Raises:
        InvalidRequest: if metadata cannot carry the token.
    """
    if not token:
        return ()
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest("the token has characters other than printable ASCII, or white space")
    return (("authorization", f"Bearer {token}"),)


def _read(what: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{what} is {str(path)!r}, but must be a file that can be read ({error.strerror})"
        ) from error
