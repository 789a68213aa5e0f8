"""Ask one gRPC server for one health name, for a container's health check.

Exits 0 where the answer is SERVING, 1 with a line that says why otherwise. Knows nothing about
Stepwire: any server that speaks grpc.health.v1 can be asked.
"""

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def ask(address: str, name: str, *, timeout_seconds: float) -> str | None:
    """Ask for the health of ``name``.

    Returns:
        None where it is SERVING, else the reason in a line.
    """
    with grpc.insecure_channel(address) as channel:
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
    arguments = parser.parse_args()
    reason = ask(arguments.address, arguments.name, timeout_seconds=arguments.timeout_seconds)
    if reason is not None:
        print(reason, file=sys.stderr)
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main())
