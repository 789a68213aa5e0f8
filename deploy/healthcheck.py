"""Ask one gRPC server for one health name, for a container's health check.

Exits 0 where the answer is SERVING, 1 with a line that says why otherwise. Knows nothing about
Stepwire: any server that speaks grpc.health.v1 can be asked.
"""

import argparse
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def read_credentials(ca: Path, pair: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
    """Read what the server must be from, and the certificate and key that it is shown where it asks."""
    certificate, key = (None, None) if pair is None else (one.read_bytes() for one in pair)
    return grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)


def ask(
    address: str, name: str, *, timeout_seconds: float, credentials: grpc.ChannelCredentials | None
) -> str | None:
    """Ask for the health of ``name``, over TLS where there are credentials.

    Returns:
        None where it is SERVING, else the reason in a line.
    """
    with (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(  # type: ignore[attr-defined]  # the published stubs lack the methods
                health_pb2.HealthCheckRequest(service=name), timeout=timeout_seconds
            )
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{address}: {name!r} is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def main() -> int:
    """Ask what the command line names."""
    parser = argparse.ArgumentParser(description="Ask a gRPC server for one health name.")
    parser.add_argument("address", help="host:port")
    parser.add_argument("name", nargs="?", default="", help='health name; "" is the server as a whole')
    parser.add_argument("--timeout-seconds", type=float, default=2.0, help="how long to wait for the answer")
    parser.add_argument("--tls-ca", type=Path, help="use TLS; the authorities that are trusted")
    parser.add_argument(
        "--tls-pair", type=Path, nargs=2, metavar=("CERT", "KEY"), help="with --tls-ca: show this certificate"
    )
    arguments = parser.parse_args()
    credentials = read_credentials(arguments.tls_ca, arguments.tls_pair) if arguments.tls_ca else None
    reason = ask(
        arguments.address,
        arguments.name,
        timeout_seconds=arguments.timeout_seconds,
        credentials=credentials,
    )
    if reason is not None:
        print(reason, file=sys.stderr)
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main())
