"""Waits until a server is ready for requests, by its health service.

Knows nothing about who started the server.
"""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepwire_client.errors import error_of_rpc

READY_SERVICE = "ready"
"""Health name that is SERVING while some worker group serves."""
_POLL_SECONDS = 0.1
_NOT_YET = {
    grpc.StatusCode.UNAVAILABLE,  # it does not listen yet
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,  # the name is not set yet
}


async def wait_until_ready(address: str) -> None:
    """Wait, without a limit, until the server at ``address`` is ready.

    Raises:
        StepwireClientError: if it answers that it has no health service, or another status that waiting
            does not change.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not await _is_ready(stub):  # noqa: ASYNC110  # another process is waited for
            await asyncio.sleep(_POLL_SECONDS)


async def _is_ready(stub: health_pb2_grpc.HealthStub) -> bool:
    request = health_pb2.HealthCheckRequest(service=READY_SERVICE)
    try:
        response = await stub.Check(request, timeout=5.0)  # type: ignore[attr-defined]  # its types lack it
    except grpc.aio.AioRpcError as error:
        if error.code() in _NOT_YET:
            return False
        raise error_of_rpc(error) from error
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
