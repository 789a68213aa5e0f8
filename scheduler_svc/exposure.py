"""What the start-up lines say of who can reach the service, and how; pure.

Knows nothing about sockets or certificates: only what the flags ask for.
"""

from collections.abc import Iterator

from scheduler_svc.config import SchedulerConfig
from service.addresses import is_this_machine


def exposure_lines(config: SchedulerConfig) -> Iterator[str]:
    """Say who can connect, and warn of what an attacker on the network could do."""
    if is_this_machine(config.host):
        yield f"only this machine can connect: --host is {config.host}"
    else:
        if not config.tenants_file and not config.tls_client_ca:
            yield (
                f"warning: whoever reaches {config.host}:{config.port} can use it; "
                "--tenants-file asks for tokens, --tls-client-ca for certificates"
            )
        if not config.tls_cert:
            yield "warning: prompts, answers and tokens travel in plain text; --tls-cert encrypts them"
        if config.metrics_port >= 0:
            yield f"warning: whoever reaches {config.host} can read the metrics"
    if not config.worker_tls_ca:
        yield from (
            f"warning: the link to worker {address} is plain text; --worker-tls-ca encrypts it"
            for address in config.worker
            if not is_this_machine(address.rpartition(":")[0])
        )
