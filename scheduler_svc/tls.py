"""TLS credentials out of the PEM files that the flags name, and what a failed handshake means.

Knows nothing about who connects to whom, nor about tokens. The worker service has a twin of its own,
because the two services share no code. A private key is never part of a message.
"""

import ssl
from pathlib import Path

import grpc

from scheduler_svc.config import ConfigError, SchedulerConfig

_BROKE_OFF = "the other side broke off: it may want TLS, or a client certificate that it trusts"
# Words of what gRPC says of a connection that did not come about -> what they mean; the first found counts.
_MEANINGS = {
    "WRONG_VERSION_NUMBER": "the other side speaks no TLS",
    "CERTIFICATE_VERIFY_FAILED": "the other side's certificate is not trusted",
    "Socket closed": _BROKE_OFF,
    "reset by peer": _BROKE_OFF,
    "Broken pipe": _BROKE_OFF,
}


def server_credentials(config: SchedulerConfig) -> grpc.ServerCredentials | None:
    """Make what the front ends listen with; None without TLS.

    Raises:
        ConfigError: naming the flag whose file is missing or holds something else.
    """
    if not config.tls_cert:
        return None
    key, certificates = _read_pair(config, "tls_cert", "tls_key")
    client_ca = _read_ca(config, "tls_client_ca") if config.tls_client_ca else None
    return grpc.ssl_server_credentials(
        [(key, certificates)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


def worker_credentials(config: SchedulerConfig) -> grpc.ChannelCredentials | None:
    """Make what the engine connects to workers with; None without TLS.

    Raises:
        ConfigError: naming the flag whose file is missing or holds something else.
    """
    if not config.worker_tls_ca:
        return None
    ca = _read_ca(config, "worker_tls_ca")
    if not config.worker_tls_cert:
        return grpc.ssl_channel_credentials(ca)
    key, certificates = _read_pair(config, "worker_tls_cert", "worker_tls_key")
    return grpc.ssl_channel_credentials(ca, key, certificates)


def explain_failure(details: str) -> str:
    """Add to gRPC's words what a failed connection means, where that can be told."""
    if not details.startswith("failed to connect"):
        return details
    meaning = next((_MEANINGS[words] for words in _MEANINGS if words in details), "")
    return f"{meaning} ({details})" if meaning else details


def _read_pair(config: SchedulerConfig, certificate: str, key: str) -> tuple[bytes, bytes]:
    """Read a private key and its certificates; a pair that does not fit is found here, not by clients."""
    certificate_pem, key_pem = _read(config, certificate), _read(config, key)
    try:
        # An empty password, so that a key that needs one is refused instead of asked for on a terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            getattr(config, certificate), getattr(config, key), password=""
        )
    except (ssl.SSLError, ValueError) as error:
        limit = f"hold a PEM certificate that fits the unencrypted private key of --{_flag(key)} ({error})"
        raise ConfigError.of(certificate, getattr(config, certificate), limit) from error
    return key_pem, certificate_pem


def _read_ca(config: SchedulerConfig, option: str) -> bytes:
    pem = _read(config, option)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(getattr(config, option))
    except ssl.SSLError as error:
        limit = f"hold PEM certificates ({error})"
        raise ConfigError.of(option, getattr(config, option), limit) from error
    return pem


def _read(config: SchedulerConfig, option: str) -> bytes:
    path = getattr(config, option)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError.of(option, path, f"be a file that can be read ({error.strerror})") from error


def _flag(option: str) -> str:
    return option.replace("_", "-")
