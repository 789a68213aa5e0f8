"""The scheduler's processes behind TLS, tokens and mutual TLS to their worker, as docs/security.md sets up.

The worker is a stand-in in this process; everything else is started and asked as people do.
"""

import asyncio
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from stepwire_client import StepwireClient, Tls

from model.config import read_model_config
from model.folder import config_hash
from tests.certificates import Authority
from tests.rpc.stack_bench import write_stand_in_folder
from tests.rpc.tenant_files import ALICE, BOB, MALLORY, write_tenants
from tests.rules.source_tree import REPOSITORY
from tests.stand_in_lanes import StandInLimits
from tests.stand_in_worker import StandInWorker
from tools.services import Service, running

LIMIT_SECONDS = 60
DOCUMENT = REPOSITORY / "docs/security.md"


def stepwire(*arguments: str, token: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command, the token in its variable as docs/security.md advises."""
    return subprocess.run(
        [sys.executable, "-m", "stepwire_cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "STEPWIRE_TOKEN": token, "COLUMNS": "200"},
    )


@pytest.fixture
def temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have processes put their temporary files into a folder of the test's; a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


async def test_all_links_are_closed_to_strangers(tmp_path: Path, temporary_folder: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server, engine, worker_pair = (authority.issue(name) for name in ("server", "engine", "worker"))
    (tmp_path / "model").mkdir()
    folder = write_stand_in_folder(tmp_path / "model")
    limits = StandInLimits(config_hash=config_hash(folder), vocab_size=read_model_config(folder).vocab_size)
    worker = StandInWorker(limits, checks_cache=False)
    credentials = grpc.ssl_server_credentials([worker_pair.pems], authority.ca_pem, require_client_auth=True)
    await worker.start(credentials=credentials)
    flags = (
        *("--model", str(folder), "--port", "0", "--worker", worker.address, "--log-level", "debug"),
        *("--tls-cert", server.cert, "--tls-key", server.key, "--tenants-file", str(write_tenants(tmp_path))),
        *("--worker-tls-ca", authority.ca, "--worker-tls-cert", engine.cert, "--worker-tls-key", engine.key),
        "--no-reflection",
    )
    with running("scheduler_svc", *flags) as scheduler:
        await asyncio.to_thread(ask_all, scheduler, authority.ca)
        (socket,) = await asyncio.to_thread(lambda: list(temporary_folder.glob("*/engine.sock")))
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    await worker.stop()
    assert worker.faults == []


def ask_all(scheduler: Service, ca: str) -> None:
    """Ask as a tenant, as strangers, and look at what was printed and left open."""
    address = scheduler.address()
    scheduler.wait_for(" serves on ")
    told = stepwire("generate", "Hi", "--raw", "--max-tokens", "2", *at(address, "--tls-ca", ca), token=ALICE)
    assert told.returncode == 0, told.stderr
    told = stepwire("state", "--once", *at(address, "--tls-ca", ca), token=MALLORY)
    assert told.returncode == 1
    assert "error: the token is not one of this server's\n" in told.stderr
    told = stepwire("state", "--once", *at(address))
    assert told.returncode == 3
    assert f"error: no connection to {address}: the server broke off: it may want TLS" in told.stderr
    assert any("only this machine can connect: --host is 127.0.0.1" in line for line in scheduler.lines)
    printed = "".join(scheduler.lines)
    assert "GetServerState UNAUTHENTICATED" in printed
    assert [secret for secret in (ALICE, BOB, MALLORY, "PRIVATE KEY") if secret in printed] == []


def at(address: str, *more: str) -> tuple[str, ...]:
    return ("--address", address, *more)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the document makes its certificate with openssl")
def test_the_document_s_own_certificate_and_token_let_a_client_in(tmp_path: Path) -> None:
    (openssl,) = (line for line in commands() if line.startswith("openssl req"))
    subprocess.run(shlex.split(openssl), cwd=tmp_path, check=True, capture_output=True, timeout=LIMIT_SECONDS)
    told = stepwire("token", "alice")
    token = told.stderr.strip().rpartition(" ")[2]
    (tmp_path / "tenants.toml").write_text(told.stdout)
    (tmp_path / "model").mkdir()
    flags = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tenants-file", "tenants.toml")
    paths = (one if one.startswith("--") else str(tmp_path / one) for one in flags)
    folder = write_stand_in_folder(tmp_path / "model")
    with running("scheduler_svc", "--model", str(folder), "--port", "0", *paths) as scheduler:
        address = scheduler.address()
        ca = str(tmp_path / "server.pem")
        with StepwireClient(address, tls=Tls(ca_file=ca), token=token) as client:
            assert client.model_info(timeout_seconds=LIMIT_SECONDS).vocab_size == 1000
        program = str(Path(sys.executable).with_name("grpcurl"))
        grpcurl = (program, "-cacert", ca, "-H", f"authorization: Bearer {token}", address, "list")
        listed = subprocess.run(grpcurl, check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        assert "stepwire.v1.GenerationService" in listed.stdout.splitlines()


def commands() -> list[str]:
    """Return the lines of the document's shell blocks, continued ones joined."""
    blocks = DOCUMENT.read_text(encoding="utf-8").split("```sh\n")[1:]
    return "\n".join(block.split("```")[0] for block in blocks).replace("\\\n", " ").splitlines()
