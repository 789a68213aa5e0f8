"""TLS credentials of the worker's port, out of the PEM files that the flags name.

A twin of the scheduler's, because the two services share no code. Knows nothing about engines or
steps. A private key is never part of a message.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from worker_svc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where the PEM files are; empty paths: there is none."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""

    def credentials(self) -> grpc.ServerCredentials | None:
        """Make what the server listens with; None without TLS.

        Raises:
            ConfigError: naming the flag whose file is missing or holds something else.
        """
        if not self.certificate:
            return None
        certificates, key = _read("--tls-cert", self.certificate), _read("--tls-key", self.key)
        try:
            # An empty password, so that a key that needs one is refused instead of asked for on a terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            limit = f"hold a PEM certificate that fits the unencrypted private key of --tls-key ({error})"
            raise ConfigError(f"--tls-cert is {self.certificate!r}, but must {limit}") from error
        client_ca = self._read_client_ca()
        return grpc.ssl_server_credentials(
            [(key, certificates)], root_certificates=client_ca, require_client_auth=client_ca is not None
        )

    def _read_client_ca(self) -> bytes | None:
        if not self.client_ca:
            return None
        pem = _read("--tls-client-ca", self.client_ca)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.client_ca)
        except ssl.SSLError as error:
            limit = f"hold PEM certificates ({error})"
            raise ConfigError(f"--tls-client-ca is {self.client_ca!r}, but must {limit}") from error
        return pem


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        limit = f"be a file that can be read ({error.strerror})"
        raise ConfigError(f"{flag} is {path!r}, but must {limit}") from error
