"""Whether the files that options name are what the service's processes will read in them.

Imports grpc, so that only who asks for it does. Knows nothing about models.
"""

from pathlib import Path

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.frontend.tenants_file import TenantsFile
from scheduler_svc.tls import server_credentials, worker_credentials


def check_files(config: SchedulerConfig) -> None:
    """Read the files, and forget them.

    Raises:
        ConfigError: naming the flag whose file is missing or holds something else.
    """
    server_credentials(config)
    worker_credentials(config)
    if config.tenants_file:
        TenantsFile(Path(config.tenants_file))
