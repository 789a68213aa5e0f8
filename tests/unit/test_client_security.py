"""What a client makes of tokens and of certificate files before it connects."""

from pathlib import Path

import pytest
from stepwire_client import AsyncStepwireClient, InvalidRequest, StepwireClient, Tls
from stepwire_client.security import token_metadata


def test_no_token_is_none_or_empty() -> None:
    assert token_metadata(None) == token_metadata("") == ()
    assert token_metadata("t0k") == (("authorization", "Bearer t0k"),)
    with pytest.raises(InvalidRequest, match="the token has characters other than"):
        token_metadata("t 0")
    StepwireClient("h:1", token=None).close()


async def test_no_token_with_asyncio() -> None:
    await AsyncStepwireClient("h:1", token=None).close()


def test_a_file_without_authorities_is_named(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(InvalidRequest, match=r"ca_file is '.*junk\.pem', but must hold PEM certificates"):
        StepwireClient("h:1", tls=Tls(ca_file=junk))
