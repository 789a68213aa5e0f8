"""Tenants: who may call, by which token, and how much each may have in flight; pure.

The table is read from TOML:

    [alice]
    token_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
    max_num_requests = 8        # may be left out: no limit
    max_num_tokens = 100000     # prompt and longest output of all requests in flight; likewise
    cache_salt = "team-a"       # may be left out: the tenant's name

It holds hashes only. A token is drawn at random, so that a plain SHA-256 cannot be turned back.
Knows nothing about files, gRPC or which requests are in flight (the engine counts them).
"""

import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_REQUESTS = 2**32 - 1
_MOST_TOKENS = 2**63 - 1
_KEYS = {"token_sha256", "max_num_requests", "max_num_tokens", "cache_salt"}


class TenantsError(ValueError):
    """The table of tenants is wrong: the message names tenant, key and limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who calls."""

    name: str
    """Empty where no tokens are asked for: all callers are one then."""
    cache_salt: str
    """Tenants of one salt share cached prefixes."""
    max_num_requests: int = 0
    """Requests that it may have in flight; 0: as many as it likes."""
    max_num_tokens: int = 0
    """Tokens of prompt and longest output that they may have together; 0: as many as it likes."""

    @property
    def has_quota(self) -> bool:
        """Whether its requests are counted."""
        return bool(self.max_num_requests or self.max_num_tokens)

    def scoped_request_id(self, request_id: str) -> str:
        """Return what the engine knows a request by, so that no tenant can meet another's ids."""
        return f"{self.name}/{request_id}" if self.name else request_id

    def scoped_cache_salt(self, cache_salt: str) -> str:
        """Return the salt of a request's prefixes: the tenant's, and within it the client's own."""
        return f"{self.cache_salt}/{cache_salt}" if self.cache_salt else cache_salt

    def own_cache_salt(self, scoped: str) -> str | None:
        """Return the client's own salt out of a scoped one; None: it is of another tenant's prefixes."""
        scope = self.scoped_cache_salt("")
        return scoped[len(scope) :] if scoped.startswith(scope) else None


ANYBODY = Tenant(name="", cache_salt="")
"""The caller where no tokens are asked for."""


class TenantTable:
    """All tenants by the hashes of their tokens."""

    def __init__(self, tenant_of_hash: Mapping[bytes, Tenant]) -> None:
        self._tenant_of_hash = dict(tenant_of_hash)

    def __len__(self) -> int:
        """Tell how many tokens there are."""
        return len(self._tenant_of_hash)

    def find(self, token: bytes) -> Tenant | None:
        """Find the tenant of a token; None: nobody's.

        All hashes are compared, each in constant time, so that the time taken tells nothing: 0.2 us a token.
        """
        found, digest = None, sha256(token).digest()
        for known, tenant in self._tenant_of_hash.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def read_tenants(text: str) -> TenantTable:
    """Read the table out of the text of a TOML file.

    Raises:
        TenantsError: naming what is wrong, and never a hash.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not all that is wrong is a TOMLDecodeError
        raise TenantsError(f"no TOML: {error}") from error
    tenant_of_hash: dict[bytes, Tenant] = {}
    for name, table in tables.items():
        if not isinstance(table, dict) or not _NAME.fullmatch(name):
            raise TenantsError(
                f"{name!r} must be a table whose name has 1 to 64 of the characters A-Z a-z 0-9 . _ -"
            )
        tenant = _read_tenant(name, table)
        for digest in _read_hashes(name, table):
            if digest in tenant_of_hash:
                other = tenant_of_hash[digest].name
                raise TenantsError(f"[{name}] token_sha256 holds a hash twice, or one that [{other}] has")
            tenant_of_hash[digest] = tenant
    return TenantTable(tenant_of_hash)


def _read_tenant(name: str, table: dict[str, Any]) -> Tenant:
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise TenantsError(f"[{name}] {unknown[0]} is unknown, but must be one of {', '.join(sorted(_KEYS))}")
    cache_salt = table.get("cache_salt", name)
    if not isinstance(cache_salt, str) or not _NAME.fullmatch(cache_salt):
        raise TenantsError(f"[{name}] cache_salt must have 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return Tenant(
        name=name,
        cache_salt=cache_salt,
        max_num_requests=_read_limit(name, table, key="max_num_requests", most=_MOST_REQUESTS),
        max_num_tokens=_read_limit(name, table, key="max_num_tokens", most=_MOST_TOKENS),
    )


def _read_limit(name: str, table: dict[str, Any], *, key: str, most: int) -> int:
    if key not in table:
        return 0
    value = table[key]
    if type(value) is not int or not 1 <= value <= most:  # true is an int, too
        raise TenantsError(f"[{name}] {key} is {value!r}, but must be a whole number in [1, {most}]")
    return value


def _read_hashes(name: str, table: dict[str, Any]) -> list[bytes]:
    hashes = table.get("token_sha256")
    if not isinstance(hashes, list) or not all(
        isinstance(one, str) and _HASH.fullmatch(one) for one in hashes
    ):
        # The value is not shown: somebody may have put the token itself there.
        raise TenantsError(f"[{name}] token_sha256 must be a list of SHA-256 hashes, each 64 digits 0-9 a-f")
    return [bytes.fromhex(one) for one in hashes]
