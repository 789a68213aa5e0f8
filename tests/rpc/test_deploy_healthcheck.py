"""The container health check against a real server: its exit status and its one line."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.certificates import Authority

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/healthcheck.py"


@pytest.fixture
def address() -> Iterator[str]:
    """Serve health on a free port: the server is SERVING, "ready" is not."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    servicer = health.HealthServicer()
    servicer.set("ready", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


def test_serving_is_success(address: str) -> None:
    assert _ask(address) == (0, "")


def test_not_serving_is_failure(address: str) -> None:
    assert _ask(address, "ready") == (1, f"{address}: 'ready' is NOT_SERVING\n")


def test_an_unknown_name_is_failure(address: str) -> None:
    status, line = _ask(address, "unheard.of")
    assert (status, line.startswith(f"{address}: NOT_FOUND")) == (1, True)


def test_a_server_with_mutual_tls_is_asked_so(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    credentials = grpc.ssl_server_credentials([authority.issue("server").pems], authority.ca_pem, True)
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    server.start()
    pair = authority.issue("probe")
    assert _ask(address, "--tls-ca", authority.ca, "--tls-pair", pair.cert, pair.key) == (0, "")
    status, line = _ask(address, "--tls-ca", authority.ca)
    assert (status, line.startswith(f"{address}: UNAVAILABLE")) == (1, True)
    server.stop(grace=None).wait()


def test_no_server_is_failure() -> None:
    # Port 1 of the loopback is never served on a test machine; the answer is a refusal, at once.
    status, line = _ask("127.0.0.1:1")
    assert (status, line.startswith("127.0.0.1:1: UNAVAILABLE")) == (1, True)


def _ask(*arguments: str) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, capture_output=True, text=True, timeout=60
    )
    return result.returncode, result.stderr
