"""TLS credentials for both sides of the scheduler service, and what a failed handshake means.

Knows nothing about tokens, nor about what PEM files hold (service/pem_files.py).
"""

import grpc

from scheduler_svc.config import ConfigError, SchedulerConfig
from service.pem_files import PemFiles

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
    return _pem_files(config).server_credentials()


def worker_credentials(config: SchedulerConfig) -> grpc.ChannelCredentials | None:
    """Make what the engine connects to workers with; None without TLS.

    Raises:
        ConfigError: naming the flag whose file is missing or holds something else.
    """
    if not config.worker_tls_ca:
        return None
    files = _pem_files(config)
    ca = files.read_ca("worker_tls_ca")
    if not config.worker_tls_cert:
        return grpc.ssl_channel_credentials(ca)
    key, certificates = files.read_pair("worker_tls_cert", "worker_tls_key")
    return grpc.ssl_channel_credentials(ca, key, certificates)


def explain_failure(details: str) -> str:
    """Add to gRPC's words what a failed connection means, where that can be told."""
    if not details.startswith("failed to connect"):
        return details
    meaning = next((_MEANINGS[words] for words in _MEANINGS if words in details), "")
    return f"{meaning} ({details})" if meaning else details


def _pem_files(config: SchedulerConfig) -> PemFiles:
    return PemFiles(config=config, refuse=ConfigError.of)
