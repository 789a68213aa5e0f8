"""The table of tenants, and the file that it comes from."""

import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest

from scheduler_svc.config import ConfigError
from scheduler_svc.frontend.tenants import ANYBODY, Tenant, TenantsError, read_tenants
from scheduler_svc.frontend.tenants_file import TenantsFile

ONE, TWO, THREE = (sha256(token).hexdigest() for token in (b"one", b"two", b"three"))


def test_tokens_lead_to_tenants() -> None:
    table = read_tenants(
        f'[alice]\ntoken_sha256 = ["{ONE}", "{TWO}"]\n'
        f'["bob.b-1"]\ntoken_sha256 = ["{THREE}"]\nmax_num_requests = 3\nmax_num_tokens = 40\n'
        'cache_salt = "team"\n'
        "[revoked]\ntoken_sha256 = []\n"
    )
    alice = Tenant(name="alice", cache_salt="alice")
    bob = Tenant(name="bob.b-1", cache_salt="team", max_num_requests=3, max_num_tokens=40)
    assert [table.find(token) for token in (b"one", b"two", b"three", b"four", b"")] == [
        *(alice, alice, bob),
        *(None, None),
    ]
    assert len(table) == 3
    assert [alice.has_quota, bob.has_quota] == [False, True]


def test_ids_and_salts_of_tenants_cannot_meet() -> None:
    alice, team = Tenant(name="a", cache_salt="a"), Tenant(name="b", cache_salt="a")
    assert (alice.scoped_request_id("x"), team.scoped_request_id("x")) == ("a/x", "b/x")
    assert alice.scoped_cache_salt("b") == team.scoped_cache_salt("b") == "a/b"
    # A name holds no slash, so that no id of one can look like another's.
    assert Tenant(name="a", cache_salt="a").scoped_request_id("b/x") == "a/b/x"
    assert (ANYBODY.scoped_request_id("x"), ANYBODY.scoped_cache_salt("s")) == ("x", "s")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "no TOML: "),
        ("a = 1", "'a' must be a table whose name has 1 to 64 of the characters"),
        ('["a/b"]\ntoken_sha256 = []', "'a/b' must be a table whose name has"),
        ('[""]\ntoken_sha256 = []', "'' must be a table whose name has"),
        ("[a]", r"\[a\] token_sha256 must be a list of SHA-256 hashes"),
        (f'[a]\ntoken_sha256 = "{ONE}"', r"\[a\] token_sha256 must be a list"),
        (f'[a]\ntoken_sha256 = ["{ONE.upper()}"]', r"\[a\] token_sha256 must be a list"),
        ('[a]\ntoken_sha256 = ["my-secret-token"]', r"\[a\] token_sha256 must be a list"),
        (f'[a]\ntoken_sha256 = ["{ONE}", "{ONE}"]', r"\[a\] token_sha256 holds a hash twice"),
        (f'[a]\ntoken_sha256 = ["{ONE}"]\n[b]\ntoken_sha256 = ["{ONE}"]', r"\[b\] .*or one that \[a\] has"),
        ("[a]\ntoken_sha256 = []\ntokens = 1", r"\[a\] tokens is unknown, but must be one of cache_salt, "),
        ("[a]\ntoken_sha256 = []\nmax_num_requests = 0", r"\[a\] max_num_requests is 0, but must be a whole"),
        ("[a]\ntoken_sha256 = []\nmax_num_tokens = true", r"\[a\] max_num_tokens is True, but must be"),
        ("[a]\ntoken_sha256 = []\nmax_num_tokens = 1.5", r"\[a\] max_num_tokens is 1.5, but must be"),
        ('[a]\ntoken_sha256 = []\ncache_salt = ""', r"\[a\] cache_salt must have 1 to 64"),
        ('[a]\ntoken_sha256 = []\ncache_salt = "a/b"', r"\[a\] cache_salt must have 1 to 64"),
        (f"[a]\nmax_num_tokens = {'1' * 5000}", "no TOML: Exceeds the limit"),
        (f"a = {'[' * 5000}", "no TOML: "),
    ],
)
def test_a_wrong_table_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(TenantsError, match=told) as caught:
        read_tenants(text)
    assert "my-secret-token" not in str(caught.value)


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "tenants.toml"
    path.write_text(f'[a]\ntoken_sha256 = ["{ONE}"]')
    file = TenantsFile(path)
    file.look()
    assert caplog.messages == []
    path.write_text(f'[a]\ntoken_sha256 = ["{ONE}", "{TWO}"]')
    file.look()
    file.look()
    assert caplog.messages == [f"--tenants-file {path} was read again: 2 tokens"]
    assert file.table.find(b"two") is not None


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_file_that_went_wrong_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(f'[a]\ntoken_sha256 = ["{ONE}"]')
    file = TenantsFile(path)
    if is_gone:
        path.unlink()
    else:
        path.write_bytes(b"\xff[")
    file.look()
    assert file.table.find(b"one") is not None
    assert "the tenants stay as they were" in caplog.messages[0]
    path.write_text("")
    file.look()
    assert file.table.find(b"one") is None


def test_a_file_that_is_gone_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text("")
    file = TenantsFile(path)
    for _ in range(2):
        path.unlink()
        file.look()
        file.look()
        path.write_text("")
        file.look()
    assert [message.split(": ")[1].split("; ")[0] for message in caplog.messages] == [
        "[Errno 2] No such file or directory"
    ] * 2


def test_a_file_that_failed_is_read_again_though_it_looks_the_same(tmp_path: Path) -> None:
    path, right = tmp_path / "tenants.toml", f'[a]\ntoken_sha256 = ["{TWO}"]'
    path.write_text(f'[a]\ntoken_sha256 = ["{ONE}"]')
    file = TenantsFile(path)
    path.write_bytes(b"\xff" * len(right))
    os.utime(path, ns=(1, 1))
    file.look()
    assert file.table.find(b"one") is not None
    path.write_text(right)
    os.utime(path, ns=(1, 1))
    file.look()
    assert (file.table.find(b"one"), len(file.table)) == (None, 1)


def test_a_start_with_a_wrong_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tenants-file is '.*t.toml', but must be a file of tenants \("):
        TenantsFile(tmp_path / "t.toml")
