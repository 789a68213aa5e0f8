"""TLS credentials out of the PEM files that a service's options name.

Knows nothing about who connects to whom, nor about tokens. A private key is never part of a message.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

Refuse = Callable[[str, object, str], Exception]
"""Makes a service's error, of an option, its value and the limit it breaks (a phrase after "must")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFiles:
    """The files of one configuration."""

    config: object
    """Has a path under each option's name."""
    refuse: Refuse
    """Makes what is raised for an option whose file is missing or holds something else."""

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Make what a service listens with; None without TLS."""
        if not self._path("tls_cert"):
            return None
        key, certificates = self.read_pair("tls_cert", "tls_key")
        client_ca = self.read_ca("tls_client_ca") if self._path("tls_client_ca") else None
        return grpc.ssl_server_credentials(
            [(key, certificates)], root_certificates=client_ca, require_client_auth=client_ca is not None
        )

    def read_pair(self, certificate: str, key: str) -> tuple[bytes, bytes]:
        """Read a private key and its certificates; a pair that does not fit is found here, not by clients."""
        certificate_pem, key_pem = self._read(certificate), self._read(key)
        try:
            # An empty password, so that a key that needs one is refused instead of asked for on a terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self._path(certificate), self._path(key), password=""
            )
        except (ssl.SSLError, ValueError) as error:
            flag = f"--{key.replace('_', '-')}"
            limit = f"hold a PEM certificate that fits the unencrypted private key of {flag} ({error})"
            raise self.refuse(certificate, self._path(certificate), limit) from error
        return key_pem, certificate_pem

    def read_ca(self, option: str) -> bytes:
        """Read the certificates of an authority."""
        pem = self._read(option)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self._path(option))
        except ssl.SSLError as error:
            raise self.refuse(option, self._path(option), f"hold PEM certificates ({error})") from error
        return pem

    def _read(self, option: str) -> bytes:
        path = self._path(option)
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise self.refuse(option, path, f"be a file that can be read ({error.strerror})") from error

    def _path(self, option: str) -> str:
        return str(getattr(self.config, option))
