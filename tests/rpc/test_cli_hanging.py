"""``stepwire serve`` and a worker that hangs: it is killed and started again."""

import asyncio
import socket
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire_cli.child_group import ChildGroup
from stepwire_cli.hanging import Patience, answers_health

LIMIT_SECONDS = 30.0
PATIENCE = Patience(probe_seconds=0.1, num_probes=3)

# Takes connections, as the kernel does for a stopped process, and answers nothing.
HANGING_WORKER = """
import signal, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(f"worker listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
while True:
    signal.pause()
"""


class Health(health_pb2_grpc.HealthServicer):
    """Answers at once: that it does not serve, or with an error."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> health_pb2.HealthCheckResponse:
        """Answer."""
        del request
        if self.code is not grpc.StatusCode.OK:
            await context.abort(self.code, "no")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)


async def is_answered(port: int, timeout_seconds: float) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return await answers_health(health_pb2_grpc.HealthStub(channel), timeout_seconds)


@pytest.mark.parametrize("code", [grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND])
async def test_whatever_is_answered_is_a_sign_of_life(code: grpc.StatusCode) -> None:
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Health(code), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert await is_answered(port, LIMIT_SECONDS)
    await server.stop(None)


async def test_silence_is_none_but_a_closed_port_is_for_others_to_notice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not await is_answered(silent.getsockname()[1], 0.05)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert await is_answered(closed.getsockname()[1], LIMIT_SECONDS)


async def test_a_worker_that_hangs_is_killed_and_started_again_where_it_listened(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ports: list[int | None] = []
    has_restarted = asyncio.Event()

    def make_command(port: int | None) -> tuple[str, ...]:
        ports.append(port)
        if len(ports) == 2:
            has_restarted.set()
        return (sys.executable, "-c", HANGING_WORKER, str(port or 0))

    group = ChildGroup()
    child = await group.start("worker", make_command, grace_seconds=LIMIT_SECONDS, patience=PATIENCE)
    running = asyncio.create_task(group.keep_running())
    await asyncio.wait_for(has_restarted.wait(), LIMIT_SECONDS)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await group.stop(asyncio.Event())
    assert ports == [None, int(child.address.result().rpartition(":")[2])]
    assert child.describe_end() == "the worker was ended by SIGKILL"
    assert "the worker has not answered for 0.3 s: it is killed" in capfd.readouterr().err
