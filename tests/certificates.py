"""Certificates that tests make for themselves: an authority, and what it signs.

Knows nothing about gRPC. Everything is for localhost and 127.0.0.1, and made in a few milliseconds.
"""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, as files."""

    cert: str
    key: str

    @property
    def pems(self) -> tuple[bytes, bytes]:
        """Private key and certificate, in the order that gRPC's server takes them."""
        return Path(self.key).read_bytes(), Path(self.cert).read_bytes()


class Authority:
    """Signs certificates; its own is in the file ``ca``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _sign(name, self._key, issuer=name, issuer_key=self._key, num_days=10)
        self.ca = str(folder / f"{name}.pem")
        Path(self.ca).write_bytes(self.ca_pem)

    @property
    def ca_pem(self) -> bytes:
        """What the file ``ca`` holds."""
        return self._certificate.public_bytes(_PEM)

    def issue(self, name: str, *, num_days: int = 10) -> Pair:
        """Sign a certificate that is valid for so many days from now; it expired where they are negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(name, key, issuer=self._name, issuer_key=self._key, num_days=num_days)
        cert_file, key_file = self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem"
        cert_file.write_bytes(certificate.public_bytes(_PEM))
        key_file.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return Pair(cert=str(cert_file), key=str(key_file))


def _sign(name: str, key: Any, *, issuer: str, issuer_key: Any, num_days: int) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 100 * _DAY)
        .not_valid_after(now + num_days * _DAY)
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
