"""What the streams for asyncio share: the errors that grpc.aio raises, and who cancels a forgotten call.

Knows nothing about which call it is.
"""

import asyncio
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.errors import Cancelled, error_of_rpc

if TYPE_CHECKING:
    from grpc.aio import StreamStreamCall  # cannot be subscripted when it runs

WRITTEN_TOO_LATE = "the stream ended while it was written to"
"""What is told, as UNAVAILABLE, of a call whose status is lost."""
_FAILED_WRITE = "Internal error from Core"


def has_lost_its_status(code: grpc.StatusCode | None, message: str) -> bool:
    """Tell what grpc.aio makes of a write that comes between a call's end and the news of it."""
    return code is grpc.StatusCode.INTERNAL and message.startswith(_FAILED_WRITE)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise StepwireClientError for what a call raises, and leave the cancelling of tasks alone."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of_rpc(error) from error
    except asyncio.CancelledError as error:
        # grpc.aio raises it also for a call that this side cancelled, where nobody cancelled the task.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Cancelled("the call was cancelled on this side") from error


def cancel_when_dropped(stream: object, call: "grpc.aio.Call") -> None:
    """Cancel ``call`` when nobody refers to ``stream`` any more.

    A call of grpc.aio is held by tasks of its own, so that it does not notice when it is dropped.
    """
    finalizer = weakref.finalize(stream, call.cancel)
    finalizer.atexit = False  # the event loop is gone by then, and the connection with it


async def write_first(
    call: "StreamStreamCall[service_pb.GenerateManyRequest, service_pb.GenerateManyResponse]",
    message: service_pb.GenerateManyRequest,
) -> None:
    """Write the first message of a call, or return when the call has ended.

    The first write waits until the call has begun: for ever, where its channel is closed before.
    """
    has_ended = asyncio.Event()
    call.add_done_callback(lambda _: has_ended.set())
    waits = {asyncio.create_task(call.write(message)), asyncio.create_task(has_ended.wait())}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
