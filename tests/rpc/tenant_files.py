"""Tokens of three people, and files of the tenants that two of them are.

Knows nothing about any test.
"""

from hashlib import sha256
from pathlib import Path

ALICE, BOB, MALLORY = "alice-9b1c5e", "bob-77d0aa", "mallory-4411ff"
"""Their tokens. Mallory is nobody's tenant."""


def tenant(name: str, token: str, more: str = "") -> str:
    """Write one tenant's table."""
    return f'[{name}]\ntoken_sha256 = ["{sha256(token.encode()).hexdigest()}"]\n{more}\n'


def write_tenants(folder: Path) -> Path:
    """Write a file of Alice, who may do as she likes, and Bob, who has quotas."""
    path = folder / "tenants.toml"
    quota = "max_num_requests = 2\nmax_num_tokens = 60"
    path.write_text(tenant("alice", ALICE) + tenant("bob", BOB, quota))
    return path
