"""What the streams for asyncio share: the errors that grpc.aio raises, and who cancels a forgotten call.

Knows nothing about which call it is.
"""

import asyncio
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from stepwire_client.errors import Cancelled, error_of_rpc


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
