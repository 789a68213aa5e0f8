"""The file of tenants: read at start, and again whenever it changes.

A changed file that is wrong is logged and the table before it stays, so that a slip of the pen locks
nobody out. Knows nothing about what a tenant may do (tenants.py).
"""

import asyncio
import logging
import os
from pathlib import Path

from scheduler_svc.config import ConfigError
from scheduler_svc.frontend.tenants import TenantsError, TenantTable, read_tenants

_LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)

_Version = tuple[int, int, int]


class TenantsFile:
    """The present table of tenants, out of one file."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: if it cannot be read or is wrong.
        """
        self._path = path
        try:
            # Before it is read: a change in between is then seen as one.
            self._version: _Version | None = _version_of(path)
            self._table = read_tenants(path.read_text(encoding="utf-8"))
            self._failure = ""
        except (OSError, UnicodeDecodeError, TenantsError) as error:
            raise ConfigError.of("tenants_file", str(path), f"be a file of tenants ({error})") from error

    @property
    def table(self) -> TenantTable:
        """The table as of the last look."""
        return self._table

    async def watch(self, look_seconds: float = _LOOK_SECONDS) -> None:
        """Look for changes, for ever."""
        while True:
            await asyncio.sleep(look_seconds)
            self.look()

    def look(self) -> None:
        """Read the file again where it has changed."""
        try:
            version = _version_of(self._path)
            if version == self._version:
                return
            self._version = version
            self._table = read_tenants(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, TenantsError) as error:
            self._version = None  # whatever makes it readable again need not change it
            if str(error) != self._failure:  # told once, not every second
                self._failure = str(error)
                _log.error("--tenants-file %s: %s; the tenants stay as they were", self._path, error)
        else:
            self._failure = ""
            _log.info("--tenants-file %s was read again: %d tokens", self._path, len(self._table))


def _version_of(path: Path) -> _Version:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
