"""TLS between the engine and its workers, and the worker's port for everybody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from service.pem_files import PemFiles
from tests.certificates import Authority, Pair
from tests.rpc import worker_harness
from tests.rpc.engine_bench import attached, new_request, running_engine, wait_until
from tests.stand_in_worker import StandInWorker
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError

BROKE_OFF = "the other side broke off: it may want TLS, or a client certificate that it trusts"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"), "ours")


@asynccontextmanager
async def stand_in(pair: Pair | None, client_ca: bytes | None = None) -> AsyncIterator[str]:
    """Run a stand-in worker with this certificate; yield its address."""
    worker, credentials = StandInWorker(), None
    if pair is not None:
        credentials = grpc.ssl_server_credentials([pair.pems], client_ca, client_ca is not None)
    await worker.start(credentials=credentials)
    yield worker.address
    await worker.stop()
    assert worker.faults == []


def worker_credentials(pair: Pair, client_ca: str = "") -> grpc.ServerCredentials | None:
    """Make what a worker listens with, as its start does."""
    config = WorkerConfig(model="m", tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=client_ca)
    return PemFiles(config=config, refuse=ConfigError.of).server_credentials()


async def reason_of(address: str, **options: Any) -> str:
    """Tell why an engine says that its worker does not serve, once it has tried."""
    async with running_engine(address, **options) as engine, attached(engine) as probe:
        await wait_until(lambda: "UNAVAILABLE" in probe.infos[-1].reason)
        assert not probe.infos[-1].is_ready
        return probe.infos[-1].reason


async def test_steps_go_over_mutual_tls(authority: Authority) -> None:
    engine_pair = authority.issue("engine")
    options: dict[str, Any] = {
        "worker_tls_ca": authority.ca,
        "worker_tls_cert": engine_pair.cert,
        "worker_tls_key": engine_pair.key,
    }
    async with (
        stand_in(authority.issue("worker"), client_ca=authority.ca_pem) as address,
        running_engine(address, **options) as engine,
        attached(engine) as probe,
    ):
        await probe.wait_ready()
        await probe.submit(new_request(1, 3, max_tokens=2))
        await probe.wait_ended(1)
        assert len(probe.tokens[1]) == 2


async def test_a_worker_that_asks_for_a_certificate_is_not_served_without(authority: Authority) -> None:
    async with stand_in(authority.issue("worker"), client_ca=authority.ca_pem) as address:
        told = await reason_of(address, worker_tls_ca=authority.ca)
    assert BROKE_OFF in told


async def test_plain_text_to_a_worker_with_tls_is_told(authority: Authority) -> None:
    async with stand_in(authority.issue("worker")) as address:
        assert BROKE_OFF in await reason_of(address)


async def test_tls_to_a_worker_without_is_told(authority: Authority) -> None:
    async with stand_in(None) as address:
        assert "the other side speaks no TLS" in await reason_of(address, worker_tls_ca=authority.ca)


async def test_a_worker_s_expired_certificate_is_told(authority: Authority) -> None:
    async with stand_in(authority.issue("old-worker", num_days=-1)) as address:
        told = await reason_of(address, worker_tls_ca=authority.ca)
    assert "the other side's certificate is not trusted" in told
    assert "certificate has expired" in told


async def test_the_worker_s_own_port_lets_in_whom_the_authority_signed(authority: Authority) -> None:
    pair, engine = authority.issue("real-worker"), authority.issue("real-engine")
    listening = worker_credentials(pair, client_ca=authority.ca)
    async with worker_harness.serving(credentials=listening, has_reflection=False) as worker:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.stub.GetWorkerInfo(pb.GetWorkerInfoRequest(), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        ca = authority.ca_pem
        async with grpc.aio.secure_channel(worker.address, grpc.ssl_channel_credentials(ca)) as channel:
            stub: Any = WorkerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetWorkerInfo(pb.GetWorkerInfoRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        credentials = grpc.ssl_channel_credentials(ca, *engine.pems)
        async with grpc.aio.secure_channel(worker.address, credentials) as channel:
            stub = WorkerServiceStub(channel)
            assert (await stub.GetWorkerInfo(pb.GetWorkerInfoRequest())).hello.block_size == 4
            health: Any = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
            call: Any = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            assert await call(b"").code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_worker_names_files_that_it_cannot_use(tmp_path: Path, authority: Authority) -> None:
    pair, other = authority.issue("one"), authority.issue("another")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    with pytest.raises(ConfigError, match="--tls-key is 'gone', but must be a file that can be read"):
        worker_credentials(Pair(cert=pair.cert, key="gone"))
    with pytest.raises(ConfigError, match=r"fits the unencrypted private key of --tls-key .*KEY_VALUES"):
        worker_credentials(Pair(cert=pair.cert, key=other.key))
    with pytest.raises(ConfigError, match=r"--tls-client-ca is '.*junk.pem', but must hold PEM certificates"):
        worker_credentials(pair, client_ca=str(junk))
