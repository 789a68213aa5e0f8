"""TLS and mutual TLS between clients and a front end: who gets in, and what the others are told."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire_client import AsyncStepwireClient, InvalidRequest, StepwireClient, Tls, TlsFailed

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.tls import server_credentials, worker_credentials
from tests.certificates import Authority, Pair
from tests.rpc.frontend_bench import LIMIT_SECONDS, running_frontend

NOT_TRUSTED = "the server's certificate is not trusted"
BROKE_OFF = "the server broke off: it may want TLS, or a client certificate that it trusts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """Two authorities that know nothing of each other, and what they signed."""

    ca: str
    ca_pem: bytes
    other_ca: str
    server: Pair
    expired_server: Pair
    client: Pair
    expired_client: Pair
    other_client: Pair


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    ours, other = Authority(folder, "ours"), Authority(folder, "other")
    return Pki(
        ca=ours.ca,
        ca_pem=ours.ca_pem,
        other_ca=other.ca,
        server=ours.issue("server"),
        expired_server=ours.issue("expired-server", num_days=-1),
        client=ours.issue("client"),
        expired_client=ours.issue("expired-client", num_days=-1),
        other_client=other.issue("other-client"),
    )


@pytest.fixture
async def tls_address(folder: Path, tmp_path: Path, pki: Pki) -> AsyncIterator[str]:
    options: dict[str, Any] = {"tls_cert": pki.server.cert, "tls_key": pki.server.key}
    async with running_frontend(folder, tmp_path, **options) as bench:
        yield bench.address


@pytest.fixture
async def mutual_address(folder: Path, tmp_path: Path, pki: Pki) -> AsyncIterator[str]:
    options: dict[str, Any] = {
        "tls_cert": pki.server.cert,
        "tls_key": pki.server.key,
        "tls_client_ca": pki.ca,
    }
    async with running_frontend(folder, tmp_path, **options) as bench:
        yield bench.address


async def ask(address: str, tls: Tls | None) -> int:
    async with AsyncStepwireClient(address, tls=tls) as client:
        return (await client.model_info(timeout_seconds=LIMIT_SECONDS)).max_model_len


async def why_not(address: str, tls: Tls | None) -> str:
    with pytest.raises(TlsFailed) as caught:
        await ask(address, tls)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE  # and no deadline that passed
    return caught.value.message


def client_tls(pki: Pki, pair: Pair) -> Tls:
    return Tls(ca_file=pki.ca, certificate_file=pair.cert, key_file=pair.key)


async def test_calls_and_health_go_over_tls(tls_address: str, pki: Pki) -> None:
    assert await ask(tls_address, Tls(ca_file=pki.ca)) == 128
    credentials = grpc.ssl_channel_credentials(pki.ca_pem)
    async with grpc.aio.secure_channel(tls_address, credentials) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest(service="ready"))).status == 1


def test_the_client_for_threads_speaks_tls_too(pki: Pki) -> None:
    server = grpc.server(None, handlers=())  # type: ignore[arg-type]  # nothing is ever called
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pki.server.pems]))
    server.start()
    tls = Tls(ca_file=pki.other_ca)
    with StepwireClient(f"127.0.0.1:{port}", tls=tls) as client, pytest.raises(TlsFailed, match=NOT_TRUSTED):
        client.model_info(timeout_seconds=LIMIT_SECONDS)
    server.stop(None).wait()


async def test_a_client_that_distrusts_the_server_says_so(tls_address: str, pki: Pki) -> None:
    assert (await why_not(tls_address, Tls(ca_file=pki.other_ca))).startswith(NOT_TRUSTED)


async def test_plain_text_to_a_tls_port_ends_fast(tls_address: str) -> None:
    assert (await why_not(tls_address, None)).startswith(BROKE_OFF)


async def test_tls_to_a_plain_port_ends_fast(folder: Path, tmp_path: Path, pki: Pki) -> None:
    async with running_frontend(folder, tmp_path) as bench:
        told = await why_not(bench.address, Tls(ca_file=pki.ca))
    assert told.startswith("the server speaks no TLS")


async def test_a_server_s_expired_certificate_is_refused(folder: Path, tmp_path: Path, pki: Pki) -> None:
    options: dict[str, Any] = {"tls_cert": pki.expired_server.cert, "tls_key": pki.expired_server.key}
    async with running_frontend(folder, tmp_path, **options) as bench:
        told = await why_not(bench.address, Tls(ca_file=pki.ca))
    assert told.startswith(NOT_TRUSTED)
    assert "certificate has expired" in told


async def test_mutual_tls_lets_in_whom_the_authority_signed(mutual_address: str, pki: Pki) -> None:
    assert await ask(mutual_address, client_tls(pki, pki.client)) == 128


@pytest.mark.parametrize("who", ["nobody", "other_client", "expired_client"])
async def test_mutual_tls_keeps_the_others_out(mutual_address: str, pki: Pki, who: str) -> None:
    tls = Tls(ca_file=pki.ca) if who == "nobody" else client_tls(pki, getattr(pki, who))
    assert (await why_not(mutual_address, tls)).startswith(BROKE_OFF)


def test_files_that_cannot_be_used_are_named(tmp_path: Path, pki: Pki) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    config = SchedulerConfig(model="m", tls_cert=str(tmp_path / "gone.pem"), tls_key=pki.server.key)
    with pytest.raises(ConfigError, match=r"--tls-cert is '.*gone.pem', but must be a file that can be read"):
        server_credentials(config)
    config = SchedulerConfig(model="m", tls_cert=pki.server.cert, tls_key=pki.client.key)
    with pytest.raises(ConfigError, match=r"fits the unencrypted private key of --tls-key .*KEY_VALUES"):
        server_credentials(config)
    options: dict[str, Any] = {
        "tls_cert": pki.server.cert,
        "tls_key": pki.server.key,
        "tls_client_ca": str(junk),
    }
    with pytest.raises(ConfigError, match=r"--tls-client-ca is '.*', but must hold PEM certificates"):
        server_credentials(SchedulerConfig(model="m", **options))
    with pytest.raises(ConfigError, match=r"--worker-tls-ca is '.*', but must hold PEM certificates"):
        worker_credentials(SchedulerConfig(model="m", worker_tls_ca=str(junk)))


def test_half_a_pair_is_refused(pki: Pki) -> None:
    with pytest.raises(ConfigError, match="--tls-cert is 'c', but must come with --tls-key"):
        SchedulerConfig(model="m", tls_cert="c")
    with pytest.raises(ConfigError, match="--tls-client-ca is 'c', but must come with --tls-cert"):
        SchedulerConfig(model="m", tls_client_ca="c")
    with pytest.raises(ConfigError, match="--worker-tls-cert is 'c', but must come with --worker-tls-ca"):
        SchedulerConfig(model="m", worker_tls_cert="c", worker_tls_key="k")
    with pytest.raises(InvalidRequest, match="must be given together"):
        Tls(certificate_file=pki.client.cert)
    with pytest.raises(InvalidRequest, match=r"ca_file is 'gone.pem', but must be a file that can be read"):
        StepwireClient("h:1", tls=Tls(ca_file="gone.pem"))
