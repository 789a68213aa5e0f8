"""Notices a service that hangs: it lives and its port takes connections, but its health goes unanswered.

Any answer is a sign of life, whatever it says. Probes that fail in a row are counted, not time, so that
a machine that slept does not make a service look hung. Knows nothing about processes.
"""

import asyncio
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a service may leave probes unanswered."""

    probe_seconds: float = 5.0
    """From one probe to the next; each waits as long for its answer."""
    num_probes: int = 6
    """Unanswered in a row: then the service hangs. A scheduler gives a silent worker up after 10 s."""

    @property
    def seconds(self) -> float:
        """How long that takes together."""
        return self.probe_seconds * self.num_probes


async def wait_until_hung(address: str, patience: Patience) -> None:
    """Wait, for ever if need be, until the service at ``address`` hangs."""
    num_unanswered = 0
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while num_unanswered < patience.num_probes:
            pause = asyncio.create_task(asyncio.sleep(patience.probe_seconds))
            is_alive = await answers_health(stub, patience.probe_seconds)
            num_unanswered = 0 if is_alive else num_unanswered + 1
            await pause


async def answers_health(stub: health_pb2_grpc.HealthStub, timeout_seconds: float) -> bool:
    """Ask once; tell whether there was an answer of any kind within the time."""
    request = health_pb2.HealthCheckRequest()
    try:
        await stub.Check(request, timeout=timeout_seconds)  # type: ignore[attr-defined]  # its types lack it
    except grpc.aio.AioRpcError as error:
        # One that refuses connections does not hang: it ends, and who waits for its end is told.
        return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return True
