"""What the start-up lines say of who can reach the worker, and how; pure.

Knows nothing about sockets or certificates: only what the flags ask for.
"""

from collections.abc import Iterator

from service.addresses import is_this_machine
from worker_svc.config import WorkerConfig


def exposure_lines(config: WorkerConfig) -> Iterator[str]:
    """Say who can connect, and warn of what an attacker on the network could do."""
    if is_this_machine(config.host):
        yield f"only this machine can connect: --host is {config.host}"
        return
    if not config.tls_client_ca:
        yield (
            f"warning: whoever reaches {config.host}:{config.port} can take the worker over; "
            "--tls-client-ca asks for certificates"
        )
    if not config.tls_cert:
        yield "warning: token ids travel in plain text; --tls-cert encrypts them"
    if config.metrics_port >= 0:
        yield f"warning: whoever reaches {config.host} can read the metrics"
