"""Tells of a start that cannot succeed before torch is imported, which takes seconds.

Knows nothing about what is in a model's files.
"""

from model.errors import ModelFolderError
from model.folder import find_local_folder
from service.listening import why_not_bound
from worker_svc.errors import ConfigError


def check_model(name: str) -> None:
    """Refuse what is no model folder, and can be no hub's model.

    Raises:
        ConfigError: saying why.
    """
    try:
        find_local_folder(name)
    except ModelFolderError as error:
        raise ConfigError(str(error)) from error


def check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on.

    Raises:
        ConfigError: saying why.
    """
    reason = why_not_bound(host, port)
    if reason:
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {reason}")
