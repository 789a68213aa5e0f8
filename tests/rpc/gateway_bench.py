"""What a gateway does: calls VllmEngine and reads answers and errors, streamed or not.

Knows nothing about any test, nor about what it calls.
"""

import asyncio
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.rpc.frontend_bench import LIMIT_SECONDS


def gateway_stub(channel: grpc.aio.Channel) -> Any:
    """Return a gateway's stub."""
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)  # type: ignore[no-untyped-call]


def raw_call(channel: grpc.aio.Channel, method: str, data: bytes, *, is_stream: bool) -> Any:
    """Call a method with bytes that need be no message."""
    path = f"/vllm.grpc.engine.VllmEngine/{method}"
    kind: Any = channel.unary_stream if is_stream else channel.unary_unary
    return kind(path)(data)


async def read_all(call: Any) -> list[Any]:
    """Read a stream to its end."""
    async with asyncio.timeout(LIMIT_SECONDS):
        return [message async for message in call]


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Wait for a call's error, whether it streams or not."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (read_all(call) if hasattr(call, "read") else asyncio.wait_for(call, LIMIT_SECONDS))
    return caught.value.code(), caught.value.details() or ""
